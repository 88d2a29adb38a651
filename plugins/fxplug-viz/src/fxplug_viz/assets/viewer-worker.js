"use strict";
/* Runs beside the page: lays out what is visible, and ahead of time what may become so. Needs dagre. */

const HEADER = 30;
const PADDING = 16;
let graph = null;
let ahead = null;

self.onmessage = ({ data }) => {
  if (data.kind === "graph") {
    graph = prepare(data);
  } else if (data.kind === "layout") {
    clearTimeout(ahead);
    const expanded = new Set(data.expanded);
    const progress = (done, total) => self.postMessage({ kind: "progress", done, total, what: "Laying out" });
    self.postMessage({ kind: "layout", request: data.request, ...flatten(expanded, progress) });
    layAhead(graph, 0);
  }
};

/** Sorts every edge to the group in which it joins two children. */
function prepare({ count, parents, sizes, edges }) {
  const children = parents.map(() => []);
  let root = -1;
  parents.forEach((parent, id) => (parent < 0 ? (root = id) : children[parent].push(id)));
  const depths = new Int32Array(parents.length).fill(-1);
  const depth = (id) => {
    const way = [];
    while (id >= 0 && depths[id] < 0) { way.push(id); id = parents[id]; }
    let above = id < 0 ? -1 : depths[id];
    for (const each of way.reverse()) depths[each] = ++above;
  };
  parents.forEach((_, id) => depth(id));
  const joined = parents.map(() => null);
  for (const [from, to] of edges) {
    let a = from, b = to;
    while (depths[a] > depths[b]) a = parents[a];
    while (depths[b] > depths[a]) b = parents[b];
    while (parents[a] !== parents[b]) { a = parents[a]; b = parents[b]; }
    const group = parents[a];
    joined[group] ??= new Map();
    const key = a * parents.length + b;
    if (!joined[group].has(key)) joined[group].set(key, { a, b, real: [] });
    joined[group].get(key).real.push([from, to]);
  }
  for (const list of children) list.sort((a, b) => a - b);
  return { count, parents, children, sizes, joined, root, cache: new Map() };
}

function signature(group, expanded) {
  let text = `${group}(`;
  for (const child of graph.children[group]) {
    if (child >= graph.count && expanded.has(child)) text += signature(child, expanded);
  }
  return `${text})`;
}

/** Returns where the children of a group lie, from its upper left corner. */
function layGroup(group, expanded, tell) {
  const key = signature(group, expanded);
  const known = graph.cache.get(key);
  if (known) return known;
  const drawing = new dagre.graphlib.Graph();
  drawing.setGraph({ nodesep: 26, ranksep: 40, edgesep: 14, rankdir: "TB", ranker: "tight-tree" });
  drawing.setDefaultEdgeLabel(() => ({}));
  const inner = new Map();
  for (const child of graph.children[group]) {
    let [width, height] = [graph.sizes[2 * child], graph.sizes[2 * child + 1]];
    if (child >= graph.count && expanded.has(child)) {
      const layout = layGroup(child, expanded, tell);
      inner.set(child, layout);
      width = Math.max(layout.width, width);
      height = layout.height;
    }
    drawing.setNode(String(child), { width, height });
  }
  for (const { a, b } of graph.joined[group]?.values() ?? []) {
    if (a !== b) drawing.setEdge(String(a), String(b), { weight: 1 });
  }
  dagre.layout(drawing);
  const boxes = [];
  let [left, top, right, bottom] = [0, 0, 0, 0];
  const edges = new Map();
  for (const edge of drawing.edges()) {
    const points = drawing.edge(edge).points.map(({ x, y }) => [x, y]);
    edges.set(Number(edge.v) * graph.parents.length + Number(edge.w), points);
    for (const [x] of points) { left = Math.min(left, x); right = Math.max(right, x); }
  }
  for (const child of graph.children[group]) {
    const { x, y, width, height } = drawing.node(String(child));
    boxes.push([child, x - width / 2, y - height / 2, width, height]);
    left = Math.min(left, x - width / 2); top = Math.min(top, y - height / 2);
    right = Math.max(right, x + width / 2); bottom = Math.max(bottom, y + height / 2);
  }
  const layout = {
    boxes, edges, inner,
    dx: PADDING - left, dy: PADDING + HEADER - top,
    width: right - left + 2 * PADDING, height: bottom - top + 2 * PADDING + HEADER,
  };
  graph.cache.set(key, layout);
  if (graph.cache.size > 4000) graph.cache.delete(graph.cache.keys().next().value);
  tell?.();
  return layout;
}

/** Returns everything visible in the coordinates of the whole picture. */
function flatten(expanded, progress) {
  const total = 1 + expanded.size;
  let done = 0, told = Date.now();
  const layout = layGroup(graph.root, expanded, () => {
    done += 1;
    if (Date.now() - told > 100) { told = Date.now(); progress(done, total); }
  });
  const boxes = [];
  const edges = [];
  const placed = new Map();
  const queue = [[graph.root, layout, 0, -HEADER]];
  const routes = [];
  while (queue.length) {
    const [group, own, x0, y0] = queue.pop();
    const place = ([x, y]) => [x + own.dx + x0, y + own.dy + y0];
    for (const [child, x, y, width, height] of own.boxes) {
      const [left, top] = place([x, y]);
      const inside = own.inner.get(child);
      boxes.push(child, left, top, width, height, inside ? 1 : 0);
      placed.set(child, [left, top, width, height]);
      if (inside) queue.push([child, inside, left + (width - inside.width) / 2, top]);
    }
    for (const [key, { a, b, real }] of graph.joined[group] ?? []) {
      const points = own.edges.get(key);
      if (points) routes.push([a, b, real, points.map(place)]);
    }
  }
  const shown = (id) => {
    let visible = id;
    for (let each = graph.parents[id]; each >= 0 && each !== graph.root; each = graph.parents[each]) {
      if (!expanded.has(each)) visible = each;
    }
    return visible;
  };
  for (const [a, b, real, points] of routes) {
    const drawn = new Map();
    for (const [from, to] of real) {
      const ends = [shown(from), shown(to)];
      const key = ends.join();
      if (drawn.has(key)) { drawn.get(key).weight += 1; continue; }
      const way = [...points];
      if (ends[0] !== a) way.unshift(...lead(placed.get(ends[0]), points[0], true));
      if (ends[1] !== b) way.push(...lead(placed.get(ends[1]), points[points.length - 1], false));
      drawn.set(key, { from: ends[0], to: ends[1], points: way.flat(), weight: 1 });
    }
    edges.push(...drawn.values());
  }
  return { boxes, edges, width: layout.width, height: layout.height - HEADER };
}

/** Returns the points that lead from a box inside a group to where the edge leaves the group, or the other way round. */
function lead([left, top, width, height], [x, y], leaving) {
  const end = [left + width / 2, leaving ? top + height : top];
  const near = [end[0], leaving ? Math.min(end[1] + 20, Math.max(end[1], y)) : Math.max(end[1] - 20, Math.min(end[1], y))];
  return leaving ? [end, near] : [near, end];
}

/** Lays out every group once, all folded in it, while nobody waits. */
function layAhead(subject, position) {
  const groups = subject.parents.length - subject.count;
  const until = Date.now() + 40;
  while (position < groups && Date.now() < until) {
    layGroup(subject.count + position, new Set([subject.count + position]));
    position += 1;
  }
  self.postMessage({ kind: "progress", done: position, total: groups, what: "Preparing folded modules" });
  if (position < groups) ahead = setTimeout(() => layAhead(subject, position), 0);
}
