//! Chromium without a window, driven over its DevTools protocol.
//!
//! `--remote-debugging-pipe` takes messages from descriptor 3 and gives answers to descriptor 4, each JSON
//! followed by a NUL.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// A browser takes seconds; this limit only keeps a broken one from blocking all other tests.
const LIMIT: Duration = Duration::from_secs(120);

/// Browsers whose last page is closed. A test takes one of them, because a new one takes longer to start than
/// most tests take.
static IDLE: Mutex<Vec<BrowserProcess>> = Mutex::new(Vec::new());

/// A browser of this program. It ends when the program does, because its pipe then does.
#[derive(Debug)]
struct BrowserProcess {
    input: ChildStdin,
    messages: Receiver<Value>,
    /// Number of the last message to it.
    last: u64,
}

/// One page, which shares nothing with other pages of its browser. It is closed when it is dropped.
#[derive(Debug)]
pub struct Browser {
    /// `None` while it is dropped.
    process: Option<BrowserProcess>,
    /// The window without history, cookies and storage that has the page.
    context: Value,
    session: Option<String>,
    /// Events that it sent without a request.
    pub events: Vec<Value>,
}

impl Browser {
    /// Opens a file in a browser; returns `None` if there is none and none is required.
    pub fn open(page: &Path) -> Option<Self> {
        let idle = IDLE.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let process = match idle {
            Some(process) => process,
            None => BrowserProcess::start(program()?),
        };
        let mut browser =
            Self { process: Some(process), context: Value::Null, session: None, events: Vec::new() };
        let context = browser.send("Target.createBrowserContext", json!({}));
        browser.context = context["browserContextId"].clone();
        let target = json!({ "url": "about:blank", "browserContextId": browser.context });
        let target = browser.send("Target.createTarget", target);
        let session = json!({ "targetId": target["targetId"], "flatten": true });
        let session = browser.send("Target.attachToTarget", session);
        browser.session = session["sessionId"].as_str().map(str::to_owned);
        for domain in ["Page", "Runtime", "Log", "Network"] {
            browser.send(&format!("{domain}.enable"), json!({}));
        }
        let size = json!({ "width": 1280, "height": 800, "deviceScaleFactor": 1, "mobile": false });
        browser.send("Emulation.setDeviceMetricsOverride", size);
        browser.send("Page.navigate", json!({ "url": format!("file://{}", page.display()) }));
        let ready = "!!document.getElementById('made')?.textContent || document.getElementById('problem')?.hidden === false";
        browser.wait_for(ready);
        Some(browser)
    }

    /// Sends a command and returns its result.
    pub fn send(&mut self, method: &str, params: Value) -> Value {
        let process = self.process.as_mut().expect("the page is not closed");
        process.last += 1;
        let mut message = json!({ "id": process.last, "method": method, "params": params });
        if let Some(session) = &self.session {
            message["sessionId"] = session.as_str().into();
        }
        let mut text = message.to_string().into_bytes();
        text.push(0);
        process.input.write_all(&text).expect("the browser reads");
        loop {
            let mut answer = process.messages.recv_timeout(LIMIT).expect("the browser answers");
            if answer["id"] == process.last {
                assert!(answer.get("error").is_none(), "{method}: {}", answer["error"]);
                return answer["result"].take();
            }
            self.events.push(answer);
        }
    }

    /// Returns the value of an expression in the page.
    pub fn value(&mut self, expression: &str) -> Value {
        let params = json!({ "expression": expression, "returnByValue": true, "awaitPromise": true });
        let mut answer = self.send("Runtime.evaluate", params);
        assert!(answer.get("exceptionDetails").is_none(), "{expression}: {}", answer["exceptionDetails"]);
        answer["result"]["value"].take()
    }

    /// Returns the text of the first element that a selector finds.
    pub fn text(&mut self, selector: &str) -> String {
        let expression = format!("document.querySelector({}).textContent", json!(selector));
        self.value(&expression).as_str().expect("text").to_owned()
    }

    /// Returns the texts of the cells of a table's rows.
    pub fn rows(&mut self, table: &str) -> Vec<Vec<String>> {
        let expression = format!(
            "[...document.querySelectorAll({})].map((row) => [...row.cells].map((cell) => cell.textContent))",
            json!(format!("{table} tbody tr"))
        );
        serde_json::from_value(self.value(&expression)).expect("rows")
    }

    /// Waits until an expression is true.
    pub fn wait_for(&mut self, expression: &str) {
        let end = Instant::now() + LIMIT;
        while self.value(expression) != true {
            assert!(Instant::now() < end, "never: {expression}");
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Presses a mouse button in the middle of an element and lets it go; then waits for the next frame.
    pub fn click(&mut self, selector: &str) {
        let (x, y, ..) = self.place(selector);
        self.mouse("mousePressed", (x, y), 1);
        self.mouse("mouseReleased", (x, y), 0);
        self.next_frame();
    }

    /// Returns middle, left edge and width of an element, which is scrolled into view.
    pub fn place(&mut self, selector: &str) -> (f64, f64, f64, f64) {
        let expression = format!(
            "(() => {{ const e = document.querySelector({}); e.scrollIntoView({{ block: 'center', behavior: 'instant' }}); \
             const r = e.getBoundingClientRect(); return [r.x + r.width / 2, r.y + r.height / 2, r.x, r.width]; }})()",
            json!(selector)
        );
        let place = self.value(&expression);
        let at = |i: usize| place[i].as_f64().expect("a number");
        (at(0), at(1), at(2), at(3))
    }

    /// Sends one event of the left mouse button.
    pub fn mouse(&mut self, kind: &str, (x, y): (f64, f64), buttons: u8) {
        let event =
            json!({ "type": kind, "x": x, "y": y, "button": "left", "buttons": buttons, "clickCount": 1 });
        self.send("Input.dispatchMouseEvent", event);
    }

    /// Presses a key that writes no text.
    pub fn key(&mut self, key: &str) {
        for kind in ["rawKeyDown", "keyUp"] {
            let code = match key {
                "Enter" => 13,
                "Escape" => 27,
                _ => 0,
            };
            let event = json!({ "type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code });
            self.send("Input.dispatchKeyEvent", event);
        }
        self.next_frame();
    }

    /// Types text.
    pub fn write(&mut self, text: &str) {
        self.send("Input.insertText", json!({ "text": text }));
        self.next_frame();
    }

    /// Waits until the page has drawn its present state.
    pub fn next_frame(&mut self) {
        self.value(
            "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(true))))",
        );
    }

    /// Asserts that the page requested nothing from any network, and that neither the console nor the policy
    /// complained.
    pub fn assert_quiet(&mut self) {
        self.next_frame();
        let of = |method: &'static str| self.events.iter().filter(move |event| event["method"] == method);
        let urls: Vec<_> =
            of("Network.requestWillBeSent").map(|e| e["params"]["request"]["url"].clone()).collect();
        let foreign = |url: &&Value| !url.as_str().is_some_and(|url| url.starts_with("file://"));
        assert!(!urls.iter().any(|url| foreign(&url)) && urls.len() <= 1, "{urls:?}");
        for method in ["Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded"] {
            assert_eq!(of(method).count(), 0, "{:?}", of(method).collect::<Vec<_>>());
        }
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // A test that failed may have failed by its browser, which ends with its pipe.
        if !thread::panicking() {
            self.session = None;
            let context = self.context.take();
            self.send("Target.disposeBrowserContext", json!({ "browserContextId": context }));
            IDLE.lock().unwrap_or_else(PoisonError::into_inner).extend(self.process.take());
        }
    }
}

/// Returns the name of the browser that is installed.
fn program() -> Option<&'static str> {
    let works = |name: &&str| {
        let version = Command::new(name).arg("--version").stderr(Stdio::null()).output();
        version.is_ok_and(|output| output.status.success())
    };
    let found = ["chromium", "chromium-browser", "google-chrome"].into_iter().find(works);
    if found.is_none() {
        testkit::missing("Chromium (Debian package chromium; `cargo xtask deps` installs it)");
    }
    found
}

impl BrowserProcess {
    fn start(program: &str) -> Self {
        // The shell puts the pipes at the descriptors that the browser uses, and removes the browser's files
        // at its end, which is after that of the tests.
        let script = r#"directory=$(mktemp -d); "$@" --user-data-dir="$directory" about:blank 3<&0 4>&1 </dev/null >/dev/null 2>&1
            rm -r "$directory""#;
        let mut child = Command::new("sh")
            .args(["-c", script, "sh", program])
            .args(["--headless=new", "--remote-debugging-pipe", "--no-first-run", "--disable-gpu"])
            // Its sandbox does not start for root, as in containers; the page is our own.
            .arg("--no-sandbox")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a shell");
        let input = child.stdin.take().expect("a pipe");
        let output = child.stdout.take().expect("a pipe");
        let (sender, messages) = channel();
        thread::spawn(move || {
            for message in BufReader::new(output).split(0) {
                let Some(value) = message.ok().and_then(|text| serde_json::from_slice(&text).ok()) else {
                    break;
                };
                if sender.send(value).is_err() {
                    break;
                }
            }
            // It has ended, or its pipe has.
            let _ = child.wait();
        });
        Self { input, messages, last: 0 }
    }
}
