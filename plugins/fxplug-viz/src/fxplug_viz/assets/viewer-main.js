/* Joins the parts: what is selected, folded and laid over, the address, and the keys. */

const byId = (id) => document.getElementById(id);

class App {
  constructor(data, worker) {
    this.data = data;
    this.selected = -1;
    this.colouring = null;
    this.picture = new Picture(byId("canvas"), { select: (id) => this.select(id), toggle: (id) => this.toggle(id) });
    this.tree = new Tree(byId("tree"), this);
    this.details = new Details(byId("details"), this);
    this.table = new Table(byId("table"), this);
    this.layouts = new Layouts(worker.script, (event) => this.progress(event));
    this.models = new Map();
    this.controls();
    this.setTheme(matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", (event) => this.setTheme(event.matches ? "dark" : "light"));
  }

  async start() {
    byId("title").textContent = this.data.title;
    const choice = byId("graph");
    for (const graph of this.data.graphs) choice.append(element("option", { value: graph.id }, graph.title));
    this.steps = this.data.steps ?? [];
    this.shownStep = -1;
    byId("steps").hidden = !this.steps.length;
    byId("step").max = String(Math.max(0, this.steps.length - 1));
    byId("graph-choice").hidden = this.data.graphs.length < 2 || this.steps.length > 0;
    const wanted = this.address();
    const graph = this.data.graphs.find((each) => each.id === wanted.get("graph")) ?? this.data.graphs[0];
    if (this.steps.length) await this.setStep(this.stepOf(wanted) ?? this.lastChange());
    else await this.setGraph(graph.id);
    await this.follow(wanted);
    window.addEventListener("hashchange", () => this.follow());
  }

  // -- what is shown --------------------------------------------------------------------------------------------

  async setGraph(key, { like = null } = {}) {
    const data = this.data.graphs.find((graph) => graph.id === key);
    if (!data) return;
    if (!this.models.has(key)) {
      const model = new Model(data);
      model.unfoldSome(50);
      this.models.set(key, model);
    }
    if (like) this.models.get(key).unfoldLike(like);
    this.model = this.models.get(key);
    byId("graph").value = key;
    this.selected = -1;
    this.picture.selected = -1;
    this.picture.setModel(this.model);
    this.tree.update();
    this.table.setModel(this.model);
    const overlay = byId("overlay");
    overlay.replaceChildren(element("option", { value: "" }, "none"));
    this.model.overlays.forEach((each, at) => overlay.append(element("option", { value: String(at) }, each.title)));
    overlay.disabled = !this.model.overlays.length;
    this.layouts.setModel(this.model, this.picture.sizes());
    this.setOverlay(-1);
    this.details.show(-1);
    await this.lay();
    this.picture.fit();
  }

  // -- steps ----------------------------------------------------------------------------------------------------

  /** Shows a step; what is selected stays so where it goes on, and what is in the middle stays there. */
  async setStep(at) {
    const wanted = Math.max(0, Math.min(this.steps.length - 1, at));
    if (Number.isNaN(wanted) || wanted === this.shownStep) return;
    const forward = wanted > this.shownStep;
    const step = this.steps[wanted];
    const old = this.model;
    const isOther = !old || old.data.id !== step.graph;
    const names = old && isOther ? this.passedOn(old, forward) : null;
    const selected = this.selected >= 0 && old && !old.isGroup(this.selected) ? old.nodes[this.selected].n : null;
    this.shownStep = wanted;
    byId("step").value = String(wanted);
    byId("step-back").disabled = wanted === 0;
    byId("step-on").disabled = wanted === this.steps.length - 1;
    byId("step-text").querySelector("strong").textContent = `${wanted + 1} of ${this.steps.length}: ${step.title}`;
    byId("step-text").querySelector("span").textContent = { unchanged: `${step.note || "nothing to do"} (nothing changed)` }[step.kind] ?? step.note;
    byId("step-text").title = `${step.title}: ${step.note}`.slice(0, 1000);
    byId("step").setAttribute("aria-valuetext", `${step.title}. ${step.note}`.slice(0, 300));
    if (isOther) {
      const { transform } = this.picture;
      const anchor = old ? this.anchor() : null;
      await this.setGraph(step.graph, { like: old });
      if (this.shownStep !== wanted) return;
      const id = anchor && this.model.byName.get(names.get(anchor.name) ?? anchor.name);
      if (id !== undefined && id !== null && this.picture.screenBox(id)) {
        this.picture.moveTo(transform);
        this.picture.keep(id, anchor.box);
      }
      const stays = selected === null ? undefined : this.model.byName.get(names?.get(selected) ?? selected);
      if (stays !== undefined) await this.select(stays);
    }
    const changes = this.model.overlays.findIndex((overlay) => overlay.kind === "change");
    this.setOverlay(this.stepChanges() ? changes : -1);
    this.details.show(this.selected);
    this.writeAddress();
  }

  /** Whether the step that is shown is what made its graph. */
  stepChanges() { return this.steps[this.shownStep]?.kind === "changed"; }

  /** The last step that did something, where a page begins. */
  lastChange() {
    const at = this.steps.map((step) => step.kind).lastIndexOf("changed");
    return at < 0 ? this.steps.length - 1 : at;
  }

  stepOf(wanted) {
    const at = Number(wanted.get("step"));
    return wanted.has("step") && Number.isInteger(at) && at >= 1 && at <= this.steps.length ? at - 1 : null;
  }

  /** Returns what nodes of a graph are called in the next graph, or in the one before. */
  passedOn(model, forward) {
    const pairs = model.nodes.map((node) => [node.n, forward ? node.y : node.x?.[1][0]?.[0]]);
    return new Map(pairs.filter(([, name]) => name !== undefined));
  }

  /** Returns the node that is nearest to the middle of the picture, and where it is. */
  anchor() {
    let best = null;
    for (const { id } of this.picture.scene.boxes.values()) {
      if (this.model.isGroup(id)) continue;
      const box = this.picture.screenBox(id);
      const far = Math.hypot(box[0] + box[2] / 2 - this.picture.width / 2, box[1] + box[3] / 2 - this.picture.height / 2);
      if (!best || far < best.far) best = { far, box, name: this.model.nodes[id].n };
    }
    return best;
  }

  nextGraph() {
    const at = this.data.graphs.indexOf(this.model.data);
    return this.steps.length ? this.data.graphs[at + 1] : undefined;
  }

  /** Shows a node of the graph before this one, or behind it. */
  async showIn(key, name, at) {
    await this.setStep(at);
    if (this.model.data.id === key && this.model.byName.has(name)) await this.select(this.model.byName.get(name), { move: true });
  }

  showBefore(name) {
    const key = this.model.data.before;
    const shown = this.steps.map((step) => step.graph);
    return this.showIn(key, name, shown.lastIndexOf(key));
  }

  showAfter(name) {
    const key = this.nextGraph().id;
    return this.showIn(key, name, this.steps.findIndex((step) => step.graph === key));
  }

  async lay() {
    const model = this.model;
    this.tree.update();
    const layout = await this.layouts.lay(model.expanded);
    if (model !== this.model) return;
    this.picture.setLayout(layout);
    this.recolour();
  }

  async toggle(id) {
    const { model } = this;
    if (id < 0 || !model.isGroup(id) || id === model.root) return;
    const before = this.picture.screenBox(id);
    if (model.expanded.has(id)) model.expanded.delete(id);
    else model.expanded.add(id);
    await this.lay();
    this.picture.keep(id, before);
    if (this.selected >= 0) this.details.show(this.selected);
    this.tree.show(id);
  }

  async setAll(open) {
    const { model } = this;
    model.expanded = new Set(open ? model.allGroups() : []);
    if (this.selected >= 0 && !model.isVisible(this.selected)) this.select(-1);
    await this.lay();
    this.details.show(this.selected);
    this.picture.fit();
  }

  /** Selects a thing; with `move` the picture goes there. */
  async select(id, { move = false } = {}) {
    this.selected = id;
    this.picture.selected = id;
    this.details.show(id);
    if (id >= 0 && this.model.reveal(id)) await this.lay();
    if (move && id >= 0) this.picture.centre(id);
    this.picture.draw();
    this.tree.rows.show();
    if (id >= 0) {
      this.tree.show(id);
      if (!this.model.isGroup(id)) this.table.show(id);
    }
    this.table.rows.show();
    this.writeAddress();
  }

  setOverlay(at) {
    this.overlay = at;
    byId("overlay").value = at < 0 ? "" : String(at);
    this.colouring = at < 0 ? null : new Colouring(this.model.overlays[at], this.model, this.theme === "dark");
    this.recolour();
  }

  recolour() {
    this.picture.overlay = this.colouring;
    if (this.colouring) {
      this.colouring.setRange([...this.picture.scene.boxes.values()].filter((box) => !box.open).map((box) => box.id));
      this.colouring.showLegend(byId("legend"));
    } else {
      byId("legend").replaceChildren();
    }
    this.picture.draw();
    this.tree.rows.show();
    this.table.rows.show();
  }

  setTheme(theme) {
    this.theme = theme;
    document.documentElement.dataset.theme = theme;
    this.picture.setColours();
    if (this.model) this.setOverlay(this.overlay);
  }

  showTable(shown) {
    this.table.shown = shown;
    byId("show-table").setAttribute("aria-pressed", String(shown));
    if (shown && this.selected >= 0 && !this.model.isGroup(this.selected)) this.table.show(this.selected);
  }

  progress({ done, total, what }) {
    const bar = byId("progress");
    bar.hidden = done >= total;
    bar.querySelector("progress").value = total ? done / total : 1;
    bar.querySelector("span").textContent = `${what}: ${done} of ${total}`;
    this.prepared = done >= total;
  }

  // -- the address ----------------------------------------------------------------------------------------------

  address() { return new URLSearchParams(location.hash.slice(1)); }

  async follow(wanted = this.address()) {
    const step = this.stepOf(wanted);
    if (step !== null) await this.setStep(step);
    const key = this.steps.length ? null : wanted.get("graph");
    if (key && key !== this.model.data.id) await this.setGraph(key);
    const name = wanted.get("node");
    const path = wanted.get("module");
    let id = name === null ? -1 : this.model.byName.get(name) ?? -1;
    if (id < 0 && path !== null) {
      id = this.model.groups.findIndex((group) => group.k === "module" && group.t === path);
      id = id < 0 ? -1 : id + this.model.count;
    }
    if (id !== this.selected) await this.select(id, { move: true });
  }

  writeAddress() {
    const wanted = new URLSearchParams();
    if (this.steps.length) wanted.set("step", String(this.shownStep + 1));
    else if (this.data.graphs.length > 1) wanted.set("graph", this.model.data.id);
    if (this.selected >= 0) {
      if (!this.model.isGroup(this.selected)) wanted.set("node", this.model.nodes[this.selected].n);
      else if (this.model.group(this.selected).k === "module") wanted.set("module", this.model.group(this.selected).t);
    }
    const text = wanted.toString();
    if (text !== location.hash.slice(1)) history.replaceState(null, "", text ? `#${text}` : location.pathname + location.search);
  }

  // -- controls -------------------------------------------------------------------------------------------------

  controls() {
    byId("graph").addEventListener("change", async (event) => {
      await this.setGraph(event.target.value);
      this.writeAddress();
    });
    byId("overlay").addEventListener("change", (event) => this.setOverlay(event.target.value === "" ? -1 : Number(event.target.value)));
    byId("step").addEventListener("input", (event) => this.setStep(Number(event.target.value)));
    byId("step-back").addEventListener("click", () => this.setStep(this.shownStep - 1));
    byId("step-on").addEventListener("click", () => this.setStep(this.shownStep + 1));
    byId("expand").addEventListener("click", () => this.setAll(true));
    byId("collapse").addEventListener("click", () => this.setAll(false));
    byId("fit").addEventListener("click", () => this.picture.fitAll());
    byId("show-table").addEventListener("click", () => this.showTable(byId("table").hidden));
    byId("theme").addEventListener("click", () => this.setTheme(this.theme === "dark" ? "light" : "dark"));
    byId("help").addEventListener("click", () => byId("keys").showModal());
    this.searching();
    document.addEventListener("keydown", (event) => this.key(event));
  }

  searching() {
    const input = byId("search");
    const list = byId("results");
    let found = [];
    let at = -1;
    const close = () => {
      list.hidden = true;
      input.setAttribute("aria-expanded", "false");
      input.removeAttribute("aria-activedescendant");
    };
    const choose = (index) => {
      if (found[index] === undefined) return;
      close();
      this.select(found[index], { move: true });
    };
    const mark = (index) => {
      at = index;
      [...list.children].forEach((item, each) => item.setAttribute("aria-selected", String(each === at)));
      list.children[at]?.scrollIntoView({ block: "nearest" });
      if (at >= 0) input.setAttribute("aria-activedescendant", `result-${at}`);
    };
    const show = () => {
      found = this.model ? this.model.search(input.value) : [];
      const items = found.slice(0, 50).map((id, index) => element(
        "li", { role: "option", id: `result-${index}`, onmousedown: (event) => { event.preventDefault(); choose(index); } },
        printable(this.model.name(id).slice(0, 200)), element("small", {}, `  ${printable(this.model.isGroup(id) ? this.model.note(id) : `${this.model.label(id)}  ${this.model.path(id)}`).slice(0, 200)}`)));
      if (!found.length) items.push(element("li", { class: "none" }, "Nothing is called so."));
      if (found.length > 50) items.push(element("li", { class: "none" }, `and ${(found.length - 50).toLocaleString("en")} more`));
      list.replaceChildren(...items);
      list.hidden = !input.value.trim();
      input.setAttribute("aria-expanded", String(!list.hidden));
      mark(found.length ? 0 : -1);
    };
    input.addEventListener("input", show);
    input.addEventListener("focus", () => input.value.trim() && show());
    input.addEventListener("blur", close);
    input.addEventListener("keydown", (event) => {
      event.stopPropagation();
      if (event.key === "ArrowDown") mark(Math.min(at + 1, Math.min(found.length, 50) - 1));
      else if (event.key === "ArrowUp") mark(Math.max(at - 1, 0));
      else if (event.key === "Enter") choose(at);
      else if (event.key === "Escape") { close(); byId("canvas").focus(); } else return;
      event.preventDefault();
    });
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || byId("keys").open || !this.model) return;
    const onSlider = event.target.type === "range" && !event.key.startsWith("Arrow");
    const inField = !onSlider && ["INPUT", "SELECT", "TEXTAREA"].includes(event.target.tagName);
    if (inField) return;
    const onButton = event.target.tagName === "BUTTON";
    const actions = {
      "/": () => { byId("search").focus(); byId("search").select(); },
      "?": () => byId("keys").showModal(),
      "+": () => this.picture.zoomBy(1.3),
      "=": () => this.picture.zoomBy(1.3),
      "-": () => this.picture.zoomBy(1 / 1.3),
      0: () => this.picture.fitAll(),
      f: () => this.selected >= 0 && this.picture.centre(this.selected, 1),
      e: () => this.setAll(true),
      c: () => this.setAll(false),
      ...(this.steps.length ? { n: () => this.setStep(this.shownStep + 1), p: () => this.setStep(this.shownStep - 1) } : {}),
      b: () => this.showTable(byId("table").hidden),
      t: () => this.setTheme(this.theme === "dark" ? "light" : "dark"),
      Escape: () => this.select(-1),
      ...(onButton ? {} : { Enter: () => this.toggle(this.selected) }),
      ArrowUp: () => this.step("from", "to"),
      ArrowDown: () => this.step("to", "from"),
      ArrowLeft: () => this.beside(-1),
      ArrowRight: () => this.beside(1),
    };
    const action = actions[event.key.length === 1 ? event.key.toLowerCase() : event.key];
    if (!action) return;
    event.preventDefault();
    action();
  }

  /** Selects the thing at the other end of an edge of what is selected. */
  step(end, own) {
    const { ways = [], boxes } = this.picture.scene;
    if (this.selected < 0) {
      const first = this.model.children[this.model.root][0];
      if (first !== undefined) this.select(first, { move: true });
      return;
    }
    const mine = boxes.get(this.selected);
    const ends = ways.filter((edge) => edge[own] === this.selected).map((edge) => edge[end]);
    const near = ends.sort((a, b) => Math.abs(boxes.get(a).minY - mine.minY) - Math.abs(boxes.get(b).minY - mine.minY))[0];
    if (near !== undefined) this.select(near, { move: true });
    else if (end === "to" && this.model.isGroup(this.selected) && this.model.expanded.has(this.selected)) {
      // The edges of an unfolded module are those of what is inside.
      this.select(this.model.children[this.selected][0], { move: true });
    }
  }

  /** Selects the thing that comes before or behind in the same group. */
  beside(step) {
    if (this.selected < 0) return;
    const siblings = this.model.children[this.model.parents[this.selected]];
    const next = siblings[siblings.indexOf(this.selected) + step];
    if (next !== undefined) this.select(next, { move: true });
  }
}

const app = new App(JSON.parse(byId("data").textContent), JSON.parse(byId("worker").textContent));
/* For scripts that drive the page. */
window.fxplugView = { app, ready: app.start().then(() => { document.documentElement.dataset.ready = "yes"; }) };
