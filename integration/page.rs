//! The page of the admin port, in a real browser.

mod acts;
mod dead;
mod files;
mod looks;
mod picture;
mod shows;
mod tokens;

use serde_json::Value;
use tidegate_harness::{Browser, Config, Daemon, Site};

/// Three hours, ms: such an item is held in the store only.
const FAR: i64 = 3 * 3_600_000;
/// Longer than every test here, ms.
const SOON: i64 = 1_800_000;

/// Windows stay open, and undeliverable items stay parked.
fn config(site: &Site<'_>) -> Config {
    site.config().text("defaults.window", "600s").set("defaults.retry", r#"{ min = "600s", max = "600s" }"#)
}

/// Twelve items of `shop`, one of `mail`, two of `nobody`, which has no queue.
fn some_of_each(site: &Site<'_>, daemon: &Daemon) {
    for application in ["shop", "mail"] {
        site.application(application);
    }
    let soon = (0..8).map(|n| site.push("shop", "1").id(&format!("order-{n}")).customer("anna").delay(SOON));
    site.client.publish_all(soon.chain([
        site.push("shop", "1").id("far").customer("ben").delay(FAR),
        site.push("shop", "1").id("window-1").customer("carl"),
        site.push("shop", "1").id("window-2").customer("carl"),
        site.push("shop", "1").id("alone").delay(FAR / 4),
        site.push("mail", "1").id("letter").customer("anna").delay(FAR / 2),
        site.push("nobody", "1").id("p-1"),
        site.push("nobody", "1").id("p-2").customer("zoe").delay(50),
    ]));
    tidegate_harness::wait_until("all are there", std::time::Duration::from_secs(10), || {
        let items = daemon.state()["items"].clone();
        items["parked"] == 2 && items["waiting"] == 13
    });
}

/// A browser that shows the page of this daemon; `None` if there is no browser.
fn opened(site: &Site<'_>, daemon: &Daemon) -> Option<Browser> {
    let browser = Browser::start(&site.dir)?;
    browser.open(&format!("http://{}/", daemon.admin()));
    Some(browser)
}

/// A daemon with the items of `some_of_each`, and a browser that shows its page.
fn shown(site: &Site<'_>) -> Option<(Daemon, Browser)> {
    let daemon = site.start(&config(site));
    some_of_each(site, &daemon);
    let browser = opened(site, &daemon)?;
    Some((daemon, browser))
}

/// A JavaScript expression: the element's text contains this.
fn says(selector: &str, text: &str) -> String {
    let [selector, text] = [selector, text].map(Value::from);
    format!("document.querySelector({selector})?.innerText.includes({text})")
}

/// A JavaScript expression: one row of this table has each of these texts in a separate cell.
fn row_has(body: &str, texts: &[&str]) -> String {
    let texts = Value::from(texts.to_vec());
    format!(
        "[...document.querySelectorAll('#{body} tr')].some((row) => {{ \
         const cells = [...row.cells].map((cell) => cell.innerText.trim()); \
         return {texts}.every((text) => cells.includes(text)); }})"
    )
}

/// In the table row that begins with a name, clicks the button with this text.
fn press_in_row(browser: &Browser, body: &str, name: &str, text: &str) {
    let [name, text] = [name, text].map(Value::from);
    browser.wait(&format!(
        "(() => {{ const row = [...document.querySelectorAll('#{body} tr')].find((row) => \
         [...row.cells].some((cell) => cell.innerText.trim() === {name})); \
         const button = row && [...row.querySelectorAll('button')].find((one) => one.innerText === {text}); \
         button?.click(); return button; }})()"
    ));
}

/// Clicks the button with this text below an element.
fn press(browser: &Browser, within: &str, text: &str) {
    let [within, text] = [within, text].map(Value::from);
    browser.wait(&format!(
        "(() => {{ const button = [...document.querySelectorAll({within} + ' button')] \
         .find((one) => one.innerText === {text}); button?.click(); return button; }})()"
    ));
}

/// The page asked no other host, its content security policy blocked nothing, and the console has no errors.
fn was_well_behaved(browser: &Browser, daemon: &Daemon) {
    let own = format!("http://{}/", daemon.admin());
    for entry in browser.log("performance") {
        let told: Value = serde_json::from_str(entry["message"].as_str().unwrap_or("{}")).expect("JSON");
        let message = &told["message"];
        if message["method"] != "Network.requestWillBeSent" {
            continue;
        }
        let url = message["params"]["request"]["url"].as_str().unwrap_or_default();
        let is_own = url.starts_with(&own) || url.starts_with("data:");
        // Pages the browser shows before the first navigation.
        assert!(is_own || url.starts_with("about:") || url.starts_with("chrome"), "it asked for {url}");
    }
    for entry in browser.log("browser") {
        // The browser logs each status other than 200 as a `network` error; these come from the daemon.
        assert_eq!(entry["source"], "network", "the console says {entry}");
    }
}
