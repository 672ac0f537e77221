//! If a token is needed, the page asks for it, keeps it for the tab, and does no more than the token allows.

use super::{config, opened, press, press_in_row, row_has, says, some_of_each};
use serde_json::json;
use std::fs;
use tidegate_harness::{Daemon, Site};

#[test]
fn the_page_asks_for_a_token_and_keeps_it_for_its_tab() {
    let site = Site::new("pagetoken");
    let mut daemon = site.start(&config(&site));
    some_of_each(&site, &daemon);
    daemon.kill9();
    let file = |name: &str, text: &str| {
        let path = site.dir.join(name);
        fs::write(&path, text).expect("the token");
        path.to_string_lossy().into_owned()
    };
    let full = file("full", "canary-for-everything");
    let read = file("read", "canary-for-reading");
    let locked = config(&site).text("admin.token_file", &full).text("admin.read_token_file", &read);
    let mut daemon = Daemon::stopped(&locked, &site.dir);
    daemon.start_again();
    daemon.wait_ready();
    let Some(browser) = opened(&site, &daemon) else { return };
    browser.wait("!document.getElementById('sign-in').hidden");
    assert_eq!(browser.run("return document.getElementById('board').checkVisibility()"), json!(false));
    let give = |token: &str| {
        browser.wait("document.activeElement.id === 'token'");
        browser.type_into("#token", token);
        press(&browser, "#token-form", "Use it");
    };
    give("another");
    browser.wait(&says("#token-fault", "This token is not accepted."));
    give("canary-for-reading");
    browser.wait(&row_has("applications", &["shop", "12"]));
    press_in_row(&browser, "applications", "shop", "Pause…");
    browser.wait(&says("#ask-count", "12 items"));
    press(&browser, "#ask", "Pause");
    browser.wait(&says("#outcomes", "this token may only read"));
    // Only this tab's session keeps the token.
    browser.run("location.reload()");
    browser.wait(&row_has("applications", &["shop", "12"]));
    let kept = "return [localStorage.length, document.cookie, location.href.includes('canary'), \
         sessionStorage.length]";
    assert_eq!(browser.run(kept), json!([0, "", false, 1]));
    press(&browser, "header", "Forget the token");
    browser.wait("!document.getElementById('sign-in').hidden");
    assert_eq!(browser.run("return sessionStorage.length"), json!(0));
    give("canary-for-everything");
    press_in_row(&browser, "applications", "shop", "Pause…");
    browser.wait(&says("#ask-count", "12 items"));
    press(&browser, "#ask", "Pause");
    browser.wait(&row_has("applications", &["shop", "paused"]));
    assert!(!daemon.log().contains("canary"), "{}", daemon.log_tail());
}
