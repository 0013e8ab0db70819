// Browsers run no web worker in a page that is opened from disk, and the search is one. There, and only there,
// this runs the worker's script in a hidden frame. Not named by mkdocs.yml, the theme would load one from a CDN.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      const worker = frame.contentWindow;
      worker.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      worker.importScripts = () => undefined;
      const script = worker.document.createElement("script");
      script.src = url;
      this.loaded = new Promise((resolve) => script.addEventListener("load", () => resolve(worker)));
      worker.document.body.append(script);
    }

    postMessage(data) {
      this.loaded.then((worker) => worker.dispatchEvent(new worker.MessageEvent("message", { data })));
    }
  };
}
