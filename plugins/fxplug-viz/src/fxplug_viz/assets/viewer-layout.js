/* Asks the worker for layouts; the page never waits for one. */

class Layouts {
  constructor(script, heard) {
    const address = URL.createObjectURL(new Blob([script], { type: "text/javascript" }));
    this.worker = new Worker(address);
    URL.revokeObjectURL(address);
    this.heard = heard;
    this.request = 0;
    this.waiting = new Map();
    this.worker.onmessage = ({ data }) => {
      if (data.kind === "progress") {
        heard(data);
        return;
      }
      const answer = this.waiting.get(data.request);
      this.waiting.delete(data.request);
      answer?.resolve(data);
    };
    this.worker.onerror = (event) => {
      for (const answer of this.waiting.values()) answer.reject(new Error(event.message));
      this.waiting.clear();
    };
  }

  setModel(model, sizes) {
    const edges = [];
    model.nodes.forEach((node, id) => node.i.forEach((input) => edges.push([input, id])));
    this.worker.postMessage({ kind: "graph", count: model.count, parents: model.parents, sizes, edges });
  }

  lay(expanded) {
    this.request += 1;
    const request = this.request;
    return new Promise((resolve, reject) => {
      this.waiting.set(request, { resolve, reject });
      this.worker.postMessage({ kind: "layout", request, expanded: [...expanded] });
    });
  }
}
