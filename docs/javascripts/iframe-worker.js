// The search of the site runs in a Worker, which browsers refuse to pages that are opened as files. Here the script of
// the worker runs in a hidden frame instead. Nothing changes where a server delivers the pages.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      this.loaded = new Promise((resolve) => { this.frame.onload = resolve; });
      document.body.appendChild(this.frame);
      const inner = this.frame.contentWindow;
      window.addEventListener("message", (event) => {
        if (event.source !== inner) return;
        const message = new MessageEvent("message", { data: event.data });
        this.dispatchEvent(message);
        if (this.onmessage) this.onmessage(message);
      });
      // The worker calls postMessage for its answers, and importScripts for the languages of the search.
      const prepare = `
        postMessage = (data) => parent.postMessage(data, "*");
        importScripts = (...urls) => Promise.all(urls.map((url) => new Promise((resolve, reject) => {
          const script = document.createElement("script");
          Object.assign(script, { src: url, async: false, onload: resolve, onerror: reject });
          document.head.appendChild(script);
        })));`;
      inner.document.open();
      inner.document.write(`<html><head><script>${prepare}<\/script><script src="${url}"><\/script></head></html>`);
      inner.document.close();
    }
    postMessage(data) {
      this.loaded.then(() => this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data })));
    }
    terminate() {
      this.frame.remove();
    }
  };
}
