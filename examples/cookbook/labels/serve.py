"""Serve a small stand-in for a model. Its address is in `url`, and each prompt that it answers in `calls.log`.

A label depends on words of the text. The confidence is random, as with a model at a temperature above 0.
"""

import json
import os
import random
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

MARKS = {"question": "?", "praise": "love great best"}
SECONDS = 0.1


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        prompt = body["messages"][-1]["content"]
        with open("calls.log", "a", encoding="utf-8") as calls:
            calls.write(prompt.splitlines()[-1] + "\n")
        time.sleep(SECONDS)
        text = prompt.splitlines()[-1].lower()
        label = next(
            (name for name, marks in MARKS.items() if any(mark in text for mark in marks.split())), "complaint"
        )
        message = {"role": "assistant", "content": None}
        if "password" in text:
            message["refusal"] = "I cannot help with that."
        else:
            message["content"] = json.dumps({"label": label, "confidence": round(random.uniform(0.5, 1), 2)})
        usage = {"prompt_tokens": len(prompt) // 4, "completion_tokens": 12}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        answer = json.dumps({"model": body["model"], "choices": [choice], "usage": usage}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_):
        pass


server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
for name, text in {"serve.pid": str(os.getpid()), "url": f"http://127.0.0.1:{server.server_port}/v1"}.items():
    with open(name, "w", encoding="utf-8") as file:
        file.write(text)
threading.Timer(900, os._exit, [0]).start()  # if nobody stops it
server.serve_forever()
