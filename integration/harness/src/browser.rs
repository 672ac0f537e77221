//! A real headless browser, driven over WebDriver: it acts on a page as a person does and reports what the
//! page did.
//!
//! WebDriver is JSON over HTTP, and a test of a page needs a dozen of its requests. Driver and browser belong
//! to the test: their files are in its directory, and they are ended by process id.

use crate::guard;
use crate::ports::free_port;
use crate::require::{on_path, require};
use crate::util::{wait_until, LEAST_WAIT};
use base64::{engine::general_purpose::STANDARD, Engine};
use rustix::process::{kill_process, Pid, Signal};
use serde_json::{json, Value};
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use ureq::Agent;

/// Longest wait for an answer of the driver; the first request starts a browser.
const ANSWER_WITHIN: Duration = Duration::from_secs(60);
/// Longest wait for the page to show something.
const SHOWN_WITHIN: Duration = LEAST_WAIT;
/// Longest time for browser and driver to end on request.
const END_WITHIN: Duration = Duration::from_secs(5);
/// Key of an element reference in WebDriver's answers.
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";

/// A running browser with one empty page; ended when dropped.
#[derive(Debug)]
pub struct Browser {
    driver: Child,
    browser: Vec<u32>,
    session: String,
    agent: Agent,
}

impl Browser {
    /// Starts a browser with its files below `dir`; `None` if none is installed, which is reported.
    pub fn start(dir: &Path) -> Option<Browser> {
        if !require("chromedriver") || !require("chromium") {
            return None;
        }
        let binary = on_path("chromium")?;
        let port = free_port();
        let log = fs::File::create(dir.join("chromedriver.log")).expect("the driver's log");
        let driver = Command::new("chromedriver")
            .arg(format!("--port={port}"))
            .env("HOME", dir)
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a second handle"))
            .stderr(log)
            .process_group(0)
            .spawn()
            .expect("chromedriver starts");
        guard::watch(driver.id());
        let config = Agent::config_builder().http_status_as_error(false).proxy(None);
        let agent = Agent::new_with_config(config.timeout_global(Some(ANSWER_WITHIN)).build());
        let base = format!("http://127.0.0.1:{port}");
        let mut it = Browser { driver, browser: Vec::new(), session: String::new(), agent };
        wait_until("the driver is ready", ANSWER_WITHIN, || {
            it.exchange("GET", &format!("{base}/status"), &Value::Null)
                .is_ok_and(|told| told["ready"] == json!(true))
        });
        let told =
            it.exchange("POST", &format!("{base}/session"), &capabilities(dir, &binary)).expect("a session");
        it.session = format!("{base}/session/{}", told["sessionId"].as_str().expect("its id"));
        it.browser = children(it.driver.id());
        it.browser.iter().copied().for_each(guard::watch);
        Some(it)
    }

    fn exchange(&self, method: &str, url: &str, body: &Value) -> Result<Value, String> {
        let body = if method == "POST" { body.to_string() } else { String::new() };
        let request = ureq::http::Request::builder().method(method).uri(url);
        let request = request.header("content-type", "application/json").body(body).expect("a request");
        let mut answer = self.agent.run(request).map_err(|error| error.to_string())?;
        let text = answer.body_mut().read_to_string().map_err(|error| error.to_string())?;
        let mut told: Value = serde_json::from_str(&text).map_err(|error| format!("{error}: {text}"))?;
        if answer.status().is_success() {
            Ok(told["value"].take())
        } else {
            Err(format!("{}: {}", told["value"]["error"], told["value"]["message"]))
        }
    }

    fn post(&self, path: &str, body: &Value) -> Value {
        let told = self.exchange("POST", &format!("{}{path}", self.session), body);
        told.unwrap_or_else(|error| panic!("{path} {body}: {error}"))
    }

    /// Navigates to an address, and waits until the scripts of the page have begun: on a busy machine the driver
    /// may answer before, and a click on a button without its listener is lost.
    pub fn open(&self, url: &str) {
        self.post("/url", &json!({ "url": url }));
        self.wait(&format!(
            "location.href.startsWith({}) && document.readyState === 'complete'",
            Value::from(url)
        ));
    }

    /// Runs a script in the page and returns its `return` value.
    pub fn run(&self, script: &str) -> Value {
        self.post("/execute/sync", &json!({ "script": script, "args": [] }))
    }

    /// Waits until a JavaScript expression is true in the page; otherwise panics with the page's text.
    pub fn wait(&self, expression: &str) {
        let end = Instant::now() + SHOWN_WITHIN;
        while self.run(&format!("return Boolean({expression})")) != json!(true) {
            if Instant::now() > end {
                panic!("not within {SHOWN_WITHIN:?}: {expression}\n{}", self.text("body"));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn element(&self, selector: &str) -> String {
        let found = self.post("/element", &json!({ "using": "css selector", "value": selector }));
        found[ELEMENT].as_str().unwrap_or_else(|| panic!("{selector}: {found}")).to_owned()
    }

    /// The visible text of an element.
    pub fn text(&self, selector: &str) -> String {
        let script = format!("return document.querySelector({}).innerText", Value::from(selector));
        self.run(&script).as_str().unwrap_or_default().to_owned()
    }

    /// Clicks with the pointer: the element must be in view and not covered.
    pub fn click(&self, selector: &str) {
        self.post(&format!("/element/{}/click", self.element(selector)), &json!({}));
    }

    /// Types into a field, after its content.
    pub fn type_into(&self, selector: &str, text: &str) {
        self.post(&format!("/element/{}/value", self.element(selector)), &json!({ "text": text }));
    }

    /// Presses one key in the focused element.
    pub fn key(&self, key: char) {
        let keys = [json!({ "type": "keyDown", "value": key }), json!({ "type": "keyUp", "value": key })];
        self.post("/actions", &json!({ "actions": [{ "type": "key", "id": "keys", "actions": keys }] }));
    }

    /// Sends a command of the Chrome DevTools protocol.
    pub fn command(&self, name: &str, parameters: &Value) -> Value {
        self.post("/goog/cdp/execute", &json!({ "cmd": name, "params": parameters }))
    }

    /// Log entries since the last call: `browser` is the console, `performance` the network.
    pub fn log(&self, kind: &str) -> Vec<Value> {
        let told = self.post("/se/log", &json!({ "type": kind }));
        told.as_array().cloned().unwrap_or_default()
    }

    /// Saves a picture of the page: its full width, and from the top at most `height` pixels.
    pub fn draw(&self, file: &Path, height: u32) {
        let script = "return [window.innerWidth, document.documentElement.scrollHeight]";
        let size = self.run(script);
        let height = size[1].as_u64().map_or(height.into(), |all| all.min(height.into()));
        let clip = json!({ "x": 0, "y": 0, "width": size[0], "height": height, "scale": 1 });
        let parameters = json!({ "format": "png", "captureBeyondViewport": true, "clip": clip });
        let shot = self.command("Page.captureScreenshot", &parameters);
        let bytes = STANDARD.decode(shot["data"].as_str().expect("a picture")).expect("base64");
        fs::write(file, bytes).expect("the picture's file");
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let all = descendants(self.driver.id());
        if !self.session.is_empty() {
            // This ends the browser; if not, it is killed below.
            let _ended = self.exchange("DELETE", &self.session, &Value::Null);
        }
        let end = Instant::now() + END_WITHIN;
        for pid in &all {
            while guard::alive(*pid) && Instant::now() < end {
                std::thread::sleep(Duration::from_millis(20));
            }
            if guard::alive(*pid) {
                let pid = i32::try_from(*pid).ok().and_then(Pid::from_raw);
                let _killed = pid.map(|pid| kill_process(pid, Signal::KILL));
            }
        }
        self.browser.iter().copied().for_each(guard::forget);
        let _killed = self.driver.kill();
        let _reaped = self.driver.wait();
        guard::forget(self.driver.id());
    }
}

fn capabilities(dir: &Path, binary: &Path) -> Value {
    let profile = format!("--user-data-dir={}", dir.join("profile").display());
    let arguments = [
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--no-first-run",
        "--no-proxy-server",
        // No network requests except those of the page.
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--window-size=1280,1000",
        &profile,
    ];
    json!({ "capabilities": { "alwaysMatch": {
        "browserName": "chrome",
        "goog:chromeOptions": { "args": arguments, "binary": binary },
        "goog:loggingPrefs": { "browser": "ALL", "performance": "ALL" },
    } } })
}

/// Child processes of all its threads.
fn children(pid: u32) -> Vec<u32> {
    // An ended process has no threads.
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten();
    let of = |thread: fs::DirEntry| fs::read_to_string(thread.path().join("children")).unwrap_or_default();
    let all: Vec<String> = threads.flatten().map(of).collect();
    all.iter().flat_map(|line| line.split_whitespace()).filter_map(|pid| pid.parse().ok()).collect()
}

/// All descendants: a browser consists of many processes.
fn descendants(pid: u32) -> Vec<u32> {
    let mut all = children(pid);
    let mut next = 0;
    while let Some(pid) = all.get(next).copied() {
        all.extend(children(pid));
        next += 1;
    }
    all
}
