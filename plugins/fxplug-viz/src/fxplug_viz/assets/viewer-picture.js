/* The picture: d3-zoom moves it, rbush says what is in sight, and only that is drawn. */

const TITLE_FONT = '600 13px "Segoe UI", system-ui, sans-serif';
const NOTE_FONT = '11px "Segoe UI", system-ui, sans-serif';

class Picture {
  constructor(canvas, { select, toggle }) {
    this.canvas = canvas;
    this.context = canvas.getContext("2d", { alpha: false });
    this.transform = vendor.zoomIdentity;
    this.scene = emptyScene();
    this.selected = -1;
    this.overlay = null;
    this.frames = [];
    this.zoom = vendor.zoom().scaleExtent([0.0005, 4]).on("zoom", (event) => {
      this.transform = event.transform;
      this.draw();
    });
    this.zoom.filter((event) => !event.button && event.type !== "dblclick");
    vendor.select(canvas).call(this.zoom).on("dblclick.zoom", null);
    canvas.addEventListener("click", (event) => select(this.at(event.offsetX, event.offsetY)));
    canvas.addEventListener("dblclick", (event) => {
      const id = this.at(event.offsetX, event.offsetY);
      if (id >= 0) toggle(id);
    });
    canvas.addEventListener("mousemove", (event) => {
      const id = event.buttons ? -1 : this.at(event.offsetX, event.offsetY);
      canvas.style.cursor = id >= 0 ? "pointer" : "grab";
      canvas.title = id >= 0 ? `${this.model.label(id)}\n${this.model.note(id)}`.slice(0, 300) : "";
    });
    new ResizeObserver(() => this.resize()).observe(canvas.parentElement);
  }

  setModel(model) {
    this.model = model;
    this.labels = new Map();
    // What is laid out belongs to another graph.
    this.scene = emptyScene();
  }

  /** Returns width and height of every box, folded. */
  sizes() {
    const { model, context } = this;
    const sizes = new Float64Array(2 * model.parents.length);
    const known = new Map();
    const measure = (font, text) => {
      const key = font + text;
      if (!known.has(key)) {
        context.font = font;
        known.set(key, context.measureText(text.slice(0, 80)).width);
      }
      return known.get(key);
    };
    for (let id = 0; id < model.parents.length; id += 1) {
      const badge = model.repeats(id) ? 64 : model.isGroup(id) ? 22 : 0;
      const width = Math.max(measure(TITLE_FONT, model.label(id)) + badge, measure(NOTE_FONT, model.note(id)) + (model.repeats(id) ? 8 : 0));
      sizes[2 * id] = Math.min(300, Math.max(80, Math.ceil(width) + 24));
      sizes[2 * id + 1] = (model.note(id) ? 44 : 30) + (model.repeats(id) ? 8 : 0);
    }
    return sizes;
  }

  setLayout({ boxes, edges, width, height }) {
    const { model } = this;
    const scene = { boxes: new Map(), inner: new vendor.RBush(), edges: new vendor.RBush(), width, height };
    const items = [];
    for (let at = 0; at < boxes.length; at += 6) {
      const [id, x, y, w, h, open] = boxes.slice(at, at + 6);
      const box = { id, minX: x, minY: y, maxX: x + w, maxY: y + h, open: open === 1, depth: model.around(id).length };
      scene.boxes.set(id, box);
      items.push(box);
    }
    scene.inner.load(items);
    const ways = edges.map(({ from, to, points, weight }) => {
      const edge = { from, to, points, weight, minX: Infinity, minY: Infinity, maxX: -Infinity, maxY: -Infinity };
      for (let at = 0; at < points.length; at += 2) {
        edge.minX = Math.min(edge.minX, points[at]); edge.maxX = Math.max(edge.maxX, points[at]);
        edge.minY = Math.min(edge.minY, points[at + 1]); edge.maxY = Math.max(edge.maxY, points[at + 1]);
      }
      return edge;
    });
    scene.edges.load(ways);
    scene.ways = ways;
    this.scene = scene;
    this.draw();
  }

  setColours() {
    const style = getComputedStyle(document.documentElement);
    const names = ["picture", "ink", "dim", "line", "box-line", "group", "group-line", "accent", "input", "user", "match",
      "placeholder", "get_attr", "call_function", "call_method", "call_module", "output", "folded", "none"];
    this.colours = Object.fromEntries(names.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
    this.draw();
  }

  resize() {
    const { clientWidth, clientHeight } = this.canvas.parentElement;
    const ratio = window.devicePixelRatio || 1;
    this.ratio = ratio;
    this.width = clientWidth;
    this.height = clientHeight;
    this.canvas.width = Math.max(1, Math.round(clientWidth * ratio));
    this.canvas.height = Math.max(1, Math.round(clientHeight * ratio));
    this.zoom.extent([[0, 0], [clientWidth, clientHeight]]);
    this.draw();
  }

  draw() {
    if (this.pending) return;
    this.pending = requestAnimationFrame(() => {
      this.pending = 0;
      const start = performance.now();
      this.paint();
      this.frames.push([start, performance.now() - start]);
      if (this.frames.length > 2000) this.frames.splice(0, 1000);
    });
  }

  paint() {
    const { context, colours, transform, scene, ratio } = this;
    if (!this.model || !colours || !this.width) return;
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.fillStyle = colours.picture;
    context.fillRect(0, 0, this.canvas.width, this.canvas.height);
    context.setTransform(ratio * transform.k, 0, 0, ratio * transform.k, ratio * transform.x, ratio * transform.y);
    const view = this.view(12);
    const boxes = scene.inner.search(view);
    const open = boxes.filter((box) => box.open).sort((a, b) => a.depth - b.depth);
    for (const box of open) this.paintOpen(box);
    this.paintEdges(scene.edges.search(view));
    if (transform.k >= 0.25) for (const box of open) this.paintHead(box);
    for (const box of boxes) if (!box.open) this.paintBox(box);
    this.drawn = boxes.length;
  }

  view(margin) {
    const { transform } = this;
    const [minX, minY] = transform.invert([-margin, -margin]);
    const [maxX, maxY] = transform.invert([this.width + margin, this.height + margin]);
    return { minX, minY, maxX, maxY };
  }

  paintOpen({ id, minX, minY, maxX, maxY }) {
    const { context, colours, transform } = this;
    context.fillStyle = colours.group;
    context.strokeStyle = id === this.selected ? colours.accent : colours["group-line"];
    context.lineWidth = id === this.selected ? Math.max(3, 2 / transform.k) : Math.max(1, 0.5 / transform.k);
    this.rounded(minX, minY, maxX - minX, maxY - minY, 8);
    context.fill();
    context.stroke();
  }

  /** Writes what an unfolded group is called, over the edges that lead into it. */
  paintHead({ id, minX, minY, maxX }) {
    const { context, colours } = this;
    context.textAlign = "left";
    context.textBaseline = "middle";
    const room = maxX - minX - 40;
    context.font = TITLE_FONT;
    const label = this.fitted(TITLE_FONT, `▾ ${this.model.label(id)}`, room);
    context.font = TITLE_FONT;
    context.strokeStyle = colours.picture;
    context.lineWidth = 4;
    context.lineJoin = "round";
    context.strokeText(label, minX + 12, minY + 16);
    context.fillStyle = colours.ink;
    context.fillText(label, minX + 12, minY + 16);
    const used = context.measureText(label).width + 8;
    context.fillStyle = colours.dim;
    context.font = NOTE_FONT;
    const note = this.model.repeats(id) ? `×${this.model.repeats(id)}  ${this.model.note(id)}` : this.model.note(id);
    if (room - used > 40) {
      const text = this.fitted(NOTE_FONT, note, room - used);
      context.strokeText(text, minX + 12 + used, minY + 17);
      context.fillText(text, minX + 12 + used, minY + 17);
    }
  }

  paintEdges(edges) {
    const { context, colours, transform } = this;
    const far = transform.k < 0.3;
    const shape = vendor.line().curve(vendor.curveBasis).context(context);
    const groups = { line: [], input: [], user: [] };
    // What is smaller than this is no line.
    const least = far ? 1.5 / transform.k : 0;
    for (const edge of edges) {
      if (far && edge.maxX - edge.minX < least && edge.maxY - edge.minY < least) continue;
      groups[edge.to === this.selected ? "input" : edge.from === this.selected ? "user" : "line"].push(edge);
    }
    for (const [name, list] of Object.entries(groups)) {
      if (!list.length) continue;
      const width = (name === "line" ? 1.2 : 2.4) * (far ? 0.6 / Math.max(transform.k, 0.06) / 2 : 1);
      context.strokeStyle = context.fillStyle = colours[name];
      context.lineWidth = width;
      context.beginPath();
      for (const { points } of list) {
        if (far) {
          context.moveTo(points[0], points[1]);
          for (let at = 2; at < points.length; at += 2) context.lineTo(points[at], points[at + 1]);
        } else {
          shape(pairs(points));
        }
      }
      context.stroke();
      if (far) continue;
      context.beginPath();
      for (const { points } of list) arrow(context, points);
      context.fill();
    }
  }

  paintBox({ id, minX, minY, maxX, maxY }) {
    const { context, colours, transform, model } = this;
    const [width, height] = [maxX - minX, maxY - minY];
    const repeats = model.repeats(id);
    const fill = this.overlay ? this.overlay.colour(id) ?? colours.none : colours[model.isGroup(id) ? "folded" : model.opcode(id)];
    const isSelected = id === this.selected;
    const far = transform.k < 0.3;
    context.fillStyle = fill;
    if (far && !isSelected) {
      // A picture of a thousand boxes above each other is a line; it stays in sight.
      const seen = Math.max(width, 3 / transform.k);
      context.fillRect(minX + (width - seen) / 2, minY, seen, height);
      return;
    }
    context.strokeStyle = isSelected ? colours.accent : colours["box-line"];
    context.lineWidth = isSelected ? Math.max(3, 2.5 / transform.k) : 1;
    if (repeats) {
      for (const offset of [8, 4]) {
        this.rounded(minX + offset, minY + offset, width - 8, height - 8, 6);
        context.fill();
        context.stroke();
      }
      this.rounded(minX, minY, width - 8, height - 8, 6);
    } else {
      this.rounded(minX, minY, width, height, 6);
    }
    context.fill();
    context.stroke();
    if (transform.k < 0.3) return;
    const shift = repeats ? -4 : 0;
    context.fillStyle = this.overlay ? this.overlay.ink(id) ?? colours.ink : colours.ink;
    context.textAlign = "left";
    context.textBaseline = "middle";
    const note = model.note(id);
    const badge = repeats ? `×${repeats}` : "";
    const text = `${model.isGroup(id) ? "▸ " : ""}${model.label(id)}`;
    context.font = TITLE_FONT;
    const middle = minY + height / 2 + shift;
    context.fillText(this.fitted(TITLE_FONT, text, width - 24 - (badge ? 44 : 0)), minX + 12, note ? middle - 8 : middle);
    if (badge) {
      context.textAlign = "right";
      context.fillText(badge, maxX - 18, middle - 8);
      context.textAlign = "left";
    }
    if (note) {
      context.font = NOTE_FONT;
      context.globalAlpha = 0.8;
      context.fillText(this.fitted(NOTE_FONT, note, width - (repeats ? 32 : 24)), minX + 12, middle + 9);
      context.globalAlpha = 1;
    }
  }

  /** Returns text cut to a width; what was cut once is known. */
  fitted(font, text, width) {
    const key = `${font}|${Math.round(width)}|${text.slice(0, 200)}`;
    let known = this.labels.get(key);
    if (known !== undefined) return known;
    this.context.font = font;
    known = printable(text.slice(0, 200));
    if (this.context.measureText(known).width > width) {
      const signs = [...known];
      let [low, high] = [0, signs.length];
      while (low < high) {
        const middle = (low + high + 1) >> 1;
        if (this.context.measureText(`${signs.slice(0, middle).join("")}…`).width <= width) low = middle;
        else high = middle - 1;
      }
      known = `${signs.slice(0, low).join("")}…`;
    }
    if (this.labels.size > 40000) this.labels.clear();
    this.labels.set(key, known);
    return known;
  }

  rounded(x, y, width, height, radius) {
    this.context.beginPath();
    this.context.roundRect(x, y, width, height, radius);
  }

  /** Returns what lies at a place of the canvas, -1 where nothing does. */
  at(x, y) {
    const [px, py] = this.transform.invert([x, y]);
    const found = this.scene.inner.search({ minX: px, minY: py, maxX: px, maxY: py });
    let best = null;
    for (const box of found) if (!best || box.depth > best.depth) best = box;
    return best ? best.id : -1;
  }

  /** Returns where a thing is on the canvas: left, top, width, height. */
  screenBox(id) {
    const box = this.scene.boxes.get(id);
    if (!box) return null;
    const [left, top] = this.transform.apply([box.minX, box.minY]);
    return [left, top, (box.maxX - box.minX) * this.transform.k, (box.maxY - box.minY) * this.transform.k];
  }

  fit() {
    const { width, height } = this.scene;
    const scale = Math.max(0.0005, Math.min(1.2, 0.94 * Math.min(this.width / width, this.height / height)));
    // A picture that is long and thin is read from its beginning.
    const readable = Math.max(scale, Math.min(0.9, (0.94 * this.width) / width));
    const top = readable * height > this.height ? 16 : (this.height - readable * height) / 2;
    this.moveTo(vendor.zoomIdentity.translate((this.width - readable * width) / 2, top).scale(readable));
  }

  fitAll() {
    const { width, height } = this.scene;
    const scale = Math.max(0.0005, Math.min(1.2, 0.94 * Math.min(this.width / width, this.height / height)));
    this.moveTo(
      vendor.zoomIdentity.translate((this.width - scale * width) / 2, (this.height - scale * height) / 2).scale(scale));
  }

  centre(id, scale) {
    const box = this.scene.boxes.get(id);
    if (!box) return;
    const room = Math.min((0.9 * this.width) / (box.maxX - box.minX), (0.9 * this.height) / (box.maxY - box.minY));
    const k = Math.min(scale ?? Math.max(this.transform.k, 0.8), Math.max(room, 0.05));
    const [x, y] = [(box.minX + box.maxX) / 2, (box.minY + box.maxY) / 2];
    this.moveTo(vendor.zoomIdentity.translate(this.width / 2 - k * x, this.height / 2 - k * y).scale(k));
  }

  /** Keeps a thing where it is on the screen although the layout changes. */
  keep(id, before) {
    const box = this.scene.boxes.get(id);
    if (!box || !before) return;
    const { k } = this.transform;
    const [x, y] = [(box.minX + box.maxX) / 2, box.minY];
    this.moveTo(vendor.zoomIdentity.translate(before[0] + before[2] / 2 - k * x, before[1] - k * y).scale(k));
  }

  zoomBy(factor) { vendor.select(this.canvas).call(this.zoom.scaleBy, factor); }

  moveTo(transform) { vendor.select(this.canvas).call(this.zoom.transform, transform); }
}

function emptyScene() {
  return { boxes: new Map(), inner: new vendor.RBush(), edges: new vendor.RBush(), ways: [], width: 1, height: 1 };
}

function pairs(points) {
  const list = [];
  for (let at = 0; at < points.length; at += 2) list.push([points[at], points[at + 1]]);
  return list;
}

function arrow(context, points) {
  const end = points.length - 2;
  const [x, y] = [points[end], points[end + 1]];
  let angle = Math.atan2(y - points[end - 1], x - points[end - 2]);
  if (Number.isNaN(angle)) angle = Math.PI / 2;
  context.moveTo(x, y);
  context.lineTo(x - 7 * Math.cos(angle - 0.4), y - 7 * Math.sin(angle - 0.4));
  context.lineTo(x - 7 * Math.cos(angle + 0.4), y - 7 * Math.sin(angle + 0.4));
  context.closePath();
}

/** Returns text in which signs that cannot be seen are written out, line ends among them. */
function printable(text) {
  return text.replace(/[\u0000-\u001f\u007f-\u009f\u2028\u2029\u202a-\u202e\u2066-\u2069]/g, (sign) => {
    const known = { "\n": "\\n", "\r": "\\r", "\t": "\\t" }[sign];
    return known ?? `\\u${sign.charCodeAt(0).toString(16).padStart(4, "0")}`;
  });
}
