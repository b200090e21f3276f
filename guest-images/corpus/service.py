"""An HTTP service by Flask whose handlers have known costs. Prints `phase NAME SECONDS`, by the threads' CPU clocks."""

import atexit
import functools
import re
import threading
import time

import flask

app = flask.Flask(__name__)
CATALOGUE = [{"name": "item %d" % i, "price": i * 37 % 101, "text": "colour %d size %d" % (i % 7, i % 5)} for i in range(400)]
PAGE = app.jinja_env.from_string(
    "<h1>{{ title }}</h1>{% for row in rows %}<p>{{ row.name }}: {{ '%.2f' % row.price }}, {{ row.text|upper }}</p>{% endfor %}"
)
spent = {"cart": 0.0, "search": 0.0, "report": 0.0}
lock = threading.Lock()


def timed(handler):
    @functools.wraps(handler)
    def wrapper():
        start = time.thread_time()
        try:
            return handler()
        finally:
            seconds = time.thread_time() - start
            with lock:
                spent[handler.__name__[len("handle_"):]] += seconds

    return wrapper


@app.route("/cart")
@timed
def handle_cart():
    total = 0
    for item in CATALOGUE:
        for count in range(20):
            total += item["price"] * count % 7
    return {"total": total}


@app.route("/search")
@timed
def handle_search():
    wanted = re.compile(r"colour [135] size (\d+)")
    found = [item for item in CATALOGUE if wanted.search(item["text"])]
    found.sort(key=lambda item: (item["price"], item["name"]))
    return flask.jsonify(found)


@app.route("/report")
@timed
def handle_report():
    return PAGE.render(title="report", rows=CATALOGUE[:150])


@atexit.register
def finish():
    print("".join("phase %s %.6f\n" % (name, seconds) for name, seconds in spent.items()), end="", flush=True)
