// The search of the site runs in a Worker, which browsers refuse to pages that are opened as files. Here the script of
// the worker runs in a hidden frame instead. Nothing changes where a server delivers the pages.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      this.frame.answer = (data) => setTimeout(() => this.receive(new MessageEvent("message", { data })));
      this.loaded = new Promise((resolve) => { this.frame.ready = resolve; });
      document.body.appendChild(this.frame);
      // The worker calls postMessage for its answers, and importScripts for the languages of the search.
      const prepare = `
        postMessage = (data) => frameElement.answer(data);
        importScripts = (...urls) => Promise.all(urls.map((url) => new Promise((resolve, reject) => {
          const script = document.createElement("script");
          Object.assign(script, { src: url, async: false, onload: resolve, onerror: reject });
          document.head.appendChild(script);
        })));`;
      const scripts = [
        `<script>${prepare}<\/script>`,
        `<script src="${url}"><\/script>`,
        "<script>frameElement.ready()<\/script>", // all before it have run
      ];
      const inner = this.frame.contentDocument;
      inner.open();
      inner.write(`<html><head>${scripts.join("")}</head></html>`);
      inner.close();
    }
    receive(message) {
      this.dispatchEvent(message);
      if (this.onmessage) this.onmessage(message);
    }
    postMessage(data) {
      this.loaded.then(() => {
        const inner = this.frame.contentWindow;
        inner.dispatchEvent(new inner.MessageEvent("message", { data }));
      });
    }
    terminate() {
      this.frame.remove();
    }
  };
}
