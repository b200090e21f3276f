//! Chromium without a window, driven over its DevTools protocol.
//!
//! `--remote-debugging-pipe` takes messages from descriptor 3 and gives answers to descriptor 4, each JSON with a NUL behind it.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

/// A browser takes seconds; this only keeps a broken one from holding up everything else.
const LIMIT: Duration = Duration::from_secs(120);

/// A browser with one page. It ends when it is dropped.
#[derive(Debug)]
pub struct Browser {
    child: Child,
    input: ChildStdin,
    messages: Receiver<Value>,
    last: u64,
    session: Option<String>,
    /// What it told without being asked.
    pub events: Vec<Value>,
    _profile: TempDir,
}

impl Browser {
    /// Starts a browser and opens a file; `None` where there is none, and need not be.
    pub fn open(page: &Path) -> Option<Self> {
        let names = ["chromium", "chromium-browser", "google-chrome"];
        let works = |name: &&&str| {
            let version = Command::new(name).arg("--version").stderr(Stdio::null()).output();
            version.is_ok_and(|output| output.status.success())
        };
        let Some(program) = names.iter().find(works) else {
            testkit::missing("Chromium (Debian package chromium; `cargo xtask deps` installs it)");
            return None;
        };
        let profile = tempfile::tempdir().expect("a directory");
        let mut browser = Self::start(program, profile);
        let target = browser.send("Target.createTarget", json!({ "url": "about:blank" }));
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

    fn start(program: &str, profile: TempDir) -> Self {
        // The shell puts the pipes where the browser looks for them.
        let mut child = Command::new("sh")
            .args(["-c", r#"exec "$@" 3<&0 4>&1 </dev/null >/dev/null 2>&1"#, "sh", program])
            .args(["--headless=new", "--remote-debugging-pipe", "--no-first-run", "--disable-gpu"])
            // Its sandbox does not start for root, as in containers; the page is our own.
            .arg("--no-sandbox")
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .arg("about:blank")
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
        });
        let (session, events) = (None, Vec::new());
        Self { child, input, messages, last: 0, session, events, _profile: profile }
    }

    /// Sends a command and returns its result.
    pub fn send(&mut self, method: &str, params: Value) -> Value {
        self.last += 1;
        let mut message = json!({ "id": self.last, "method": method, "params": params });
        if let Some(session) = &self.session {
            message["sessionId"] = session.as_str().into();
        }
        let mut text = message.to_string().into_bytes();
        text.push(0);
        self.input.write_all(&text).expect("the browser reads");
        loop {
            let mut answer = self.messages.recv_timeout(LIMIT).expect("the browser answers");
            if answer["id"] == self.last {
                assert!(answer.get("error").is_none(), "{method}: {}", answer["error"]);
                return answer["result"].take();
            }
            self.events.push(answer);
        }
    }

    /// The value of an expression in the page.
    pub fn value(&mut self, expression: &str) -> Value {
        let params = json!({ "expression": expression, "returnByValue": true, "awaitPromise": true });
        let mut answer = self.send("Runtime.evaluate", params);
        assert!(answer.get("exceptionDetails").is_none(), "{expression}: {}", answer["exceptionDetails"]);
        answer["result"]["value"].take()
    }

    /// The text of the first element that a selector finds.
    pub fn text(&mut self, selector: &str) -> String {
        let expression = format!("document.querySelector({}).textContent", json!(selector));
        self.value(&expression).as_str().expect("text").to_owned()
    }

    /// Texts of the cells of a table's rows.
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

    /// Middle, left edge and width of an element, which is scrolled into sight.
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

    /// One event of the left mouse button.
    pub fn mouse(&mut self, kind: &str, (x, y): (f64, f64), buttons: u8) {
        let event =
            json!({ "type": kind, "x": x, "y": y, "button": "left", "buttons": buttons, "clickCount": 1 });
        self.send("Input.dispatchMouseEvent", event);
    }

    /// A key that writes no text.
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

    /// The page has drawn what it was told.
    pub fn next_frame(&mut self) {
        self.value(
            "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(true))))",
        );
    }

    /// Asserts that nothing was asked of any network, and that neither the console nor the policy complained.
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
        // Both fail only if the browser is gone already, which is what is wanted.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
