//! Actions on the page: each asks for confirmation with the number of items, and reports its outcome.

use super::{press, press_in_row, row_has, says, shown, was_well_behaved};
use serde_json::{json, Value};
use std::time::Duration;
use tidegate_harness::{wait_until, Browser, Daemon, Site};

/// Waits for the dialog with this title and count, and clicks this button.
pub(super) fn asked(browser: &Browser, title: &str, counted: &str, answer: &str) {
    browser.wait("document.getElementById('ask').open");
    browser.wait(&says("#ask-title", title));
    browser.wait(&says("#ask-count", counted));
    press(browser, "#ask", answer);
    browser.wait("!document.getElementById('ask').open");
}

/// Two dialogs in immediate succession: the rest of the first must not answer the second.
#[test]
fn a_dialog_that_is_closed_answers_no_later_one() {
    let site = Site::new("pageagain");
    let Some((daemon, browser)) = shown(&site) else { return };
    browser.wait(&row_has("applications", &["shop", "12"]));
    // The first dialog's end and its count arrive when the second is already open.
    browser.run(
        "window.first = carryOut({ title: ['one'], text: [], verb: 'A', told: () => 'the first', about: [], \
             counted: () => new Promise((told) => { window.late = told; }), method: 'POST', \
             where: () => '/api/v1/applications/mail/pause' }); \
         document.getElementById('ask-no').click(); \
         orderApplication('shop', 'pause')",
    );
    browser.wait(&says("#ask-count", "12 items"));
    browser.run("window.late(['the count of another', 'B'])");
    browser.run("return window.first");
    assert_eq!(browser.text("#ask-title"), "Pause shop?");
    assert!(browser.text("#ask-count").starts_with("12 items"), "{}", browser.text("#ask-count"));
    asked(&browser, "Pause shop?", "12 items", "Pause");
    browser.wait(&says("#outcomes", "Paused: shop"));
    assert_eq!((is_paused(&daemon, "shop"), is_paused(&daemon, "mail")), (true, false));
    was_well_behaved(&browser, &daemon);
}

fn is_paused(daemon: &Daemon, name: &str) -> bool {
    daemon.ask("GET", &format!("/api/v1/applications/{name}")).1["paused"] == true
}

fn audited(daemon: &Daemon, action: &str) -> usize {
    daemon.log().matches(&format!("admin action action=\"{action}\"")).count()
}

#[test]
fn an_application_is_paused_and_resumed() {
    let site = Site::new("pagepause");
    let Some((daemon, browser)) = shown(&site) else { return };
    press_in_row(&browser, "applications", "shop", "Pause…");
    asked(&browser, "Pause shop?", "12 items: 12 waiting", "Leave it");
    assert_eq!((is_paused(&daemon, "shop"), audited(&daemon, "pause")), (false, 0), "it was left");
    // With the keyboard: Escape closes the dialog, and nothing is done.
    press_in_row(&browser, "applications", "shop", "Pause…");
    browser.wait(&says("#ask-count", "12 items"));
    browser.key('\u{e00c}');
    browser.wait("!document.getElementById('ask').open");
    assert!(!is_paused(&daemon, "shop"));
    press_in_row(&browser, "applications", "shop", "Pause…");
    asked(&browser, "Pause shop?", "12 items: 12 waiting", "Pause");
    browser.wait(&says("#outcomes", "Paused: shop"));
    browser.wait(&row_has("applications", &["shop", "paused"]));
    assert!(is_paused(&daemon, "shop"));
    press_in_row(&browser, "applications", "shop", "Resume…");
    asked(&browser, "Resume shop?", "12 items: 12 waiting", "Resume");
    browser.wait(&says("#outcomes", "Resumed: shop"));
    assert_eq!((is_paused(&daemon, "shop"), audited(&daemon, "pause")), (false, 1));
    // With an end, an hour ahead.
    press_in_row(&browser, "applications", "shop", "Pause…");
    browser.wait(&says("#ask-count", "12 items"));
    browser.run("document.getElementById('pause-for').value = '3600000'");
    asked(&browser, "Pause shop?", "12 items: 12 waiting", "Pause");
    browser.wait(&says("#outcomes", "Paused, until "));
    browser.wait(&says("#applications", "paused until "));
    let until = daemon.ask("GET", "/api/v1/applications/shop").1["paused_until"].as_u64().expect("its end");
    let ahead = until.saturating_sub(tidegate_harness::now_ms());
    assert!((3_000_000..=3_600_001).contains(&ahead), "{ahead}");
    // A time of day has its date, unless that is today.
    let shown = |until: &str| {
        let shown = browser.run(&format!(
            "const a = board.applications.find((a) => a.name === 'shop'); a.paused_until = {until}; \
             showApplications(); const pill = [...document.querySelectorAll('#applications .pill')] \
                 .find((pill) => pill.innerText.includes('until')); \
             return [pill.innerText, pill.title.includes(new Date(a.paused_until).toISOString())]"
        ));
        assert_eq!(shown[1], true, "{shown}");
        shown[0].as_str().unwrap_or_default().to_owned()
    };
    let far = shown("Date.UTC(2099, 4, 17, 12)");
    assert!(far.starts_with("paused until 17 May 2099, "), "{far}");
    assert_eq!(shown("now()").len(), "paused until 12:34:56".len());
    was_well_behaved(&browser, &daemon);
}

#[test]
fn items_and_customers_are_taken_back_and_flushed() {
    let site = Site::new("pagecancel");
    let Some((daemon, browser)) = shown(&site) else { return };
    press_in_row(&browser, "rows", "letter", "Cancel…");
    asked(&browser, "Cancel item letter?", "1 item, waiting, due in", "Leave it");
    press_in_row(&browser, "rows", "letter", "Cancel…");
    asked(&browser, "Cancel item letter?", "1 item, waiting, due in", "Cancel the item");
    browser.wait(&says("#outcomes", "Cancelled: 1 item"));
    browser.wait(&format!("!({})", row_has("rows", &["letter"])));
    let state = |path: &str| daemon.ask("GET", path).1;
    assert_eq!(state("/api/v1/items/mail/letter")["state"], "cancelled");
    let customer = |name: &str| {
        press(&browser, "#search", "Clear");
        browser.wait("document.getElementById('search-name').value === ''");
        browser.type_into("#search-name", name);
        browser.type_into("#search-application", "shop");
        press(&browser, "#search", "Search");
        browser.wait(&says("#found [data-of=customer]", name));
    };
    customer("anna");
    press(&browser, "#found", "Cancel all…");
    asked(&browser, "Cancel all of customer anna?", "8 items: 8 waiting", "Cancel 8 items");
    browser.wait(&says("#outcomes", "Cancelled: 8 items"));
    assert_eq!(state("/api/v1/customers/shop/anna")["waiting"], 0);
    customer("carl");
    press(&browser, "#found", "Flush the window…");
    asked(&browser, "Flush the window of carl?", "2 items of this customer wait", "Flush");
    browser.wait(&says("#outcomes", "Flushed: 2 items of carl"));
    wait_until("they have left", Duration::from_secs(10), || {
        state("/api/v1/items/shop/window-1")["state"] == "sent"
    });
    assert_eq!((audited(&daemon, "cancel"), audited(&daemon, "cancel_customer")), (1, 1));
    was_well_behaved(&browser, &daemon);
}

/// The selected items are counted and then cancelled, and no others.
#[test]
fn items_of_an_application_are_cancelled_by_what_they_have_in_common() {
    let site = Site::new("pageselected");
    let Some((daemon, browser)) = shown(&site) else { return };
    press_in_row(&browser, "applications", "shop", "Cancel…");
    browser.wait(&says("#ask-count", "12 items: 12 waiting"));
    browser.type_into("#cancel-prefix", "nobody");
    browser.key('\u{e004}');
    browser.wait(&says("#ask-count", "there are none"));
    assert_eq!(browser.run("return document.getElementById('ask-yes').disabled"), true);
    browser.run(
        "const prefix = document.getElementById('cancel-prefix'); \
         prefix.value = 'ann'; prefix.dispatchEvent(new Event('change'))",
    );
    asked(&browser, "Cancel items of shop?", "8 items: 8 waiting", "Cancel 8 items");
    browser.wait(&says("#outcomes", "Cancelled: 8 items"));
    assert_eq!(daemon.ask("GET", "/api/v1/customers/shop/anna").1["waiting"], 0);
    assert_eq!(daemon.ask("GET", "/api/v1/customers/mail/anna").1["waiting"], 1, "of another application");
    press_in_row(&browser, "applications", "shop", "Cancel…");
    asked(&browser, "Cancel items of shop?", "4 items: 4 waiting", "Cancel 4 items");
    browser.wait(&says("#outcomes", "Cancelled: 4 items"));
    assert_eq!((audited(&daemon, "cancel_selected"), audited(&daemon, "count_selected")), (2, 0));
    was_well_behaved(&browser, &daemon);
}

#[test]
fn what_is_parked_is_tried_and_given_up() {
    let site = Site::new("pageparked");
    let Some((daemon, browser)) = shown(&site) else { return };
    let failures = || {
        let parked = daemon.ask("GET", "/api/v1/parked").1;
        parked["applications"][0]["failures"].as_u64().unwrap_or(0)
    };
    let before = failures();
    press_in_row(&browser, "parked", "nobody", "Try now…");
    asked(&browser, "Try now nobody?", "2 items:", "Try now");
    browser.wait(&says("#outcomes", "Tried now: nobody"));
    wait_until("it has failed again", Duration::from_secs(10), || failures() > before);
    press_in_row(&browser, "parked", "nobody", "Drop…");
    asked(
        &browser,
        "Drop the parked items of nobody?",
        "2 items are parked and will be dropped.",
        "Drop 2 items",
    );
    browser.wait(&says("#outcomes", "Cancelled: 2 items"));
    browser.wait(&says("#parked-text", "Nothing is parked."));
    assert_eq!(browser.run(&format!("return {}", row_has("parked", &["nobody"]))), json!(false));
    daemon.holds("parked", 0);
    was_well_behaved(&browser, &daemon);
}

#[test]
fn it_goes_on_after_a_restart_and_says_meanwhile_that_nobody_answers() {
    let site = Site::new("pagerestart");
    let Some((mut daemon, browser)) = shown(&site) else { return };
    browser.wait(&row_has("applications", &["shop", "12"]));
    daemon.kill9();
    browser.wait(&says("#silence-text", "No answer since"));
    browser.wait(&says("#silence-text", "it cannot be reached"));
    assert_eq!(browser.run("return document.getElementById('board').className"), json!("stale"));
    browser.wait(&says("#state", "no answer"));
    daemon.start_again();
    daemon.wait_ready();
    press(&browser, "#silence", "Try now");
    browser.wait("document.getElementById('silence').hidden");
    browser.wait(&says("#state", "running"));
    browser.wait(&row_has("applications", &["shop", "12"]));
    let first = browser.run("return board.at");
    browser.wait(&format!("board.at > {first} + 1500"));
    // A hidden tab sends no requests.
    let hide = |hidden: bool| {
        browser.run(&format!(
            "Object.defineProperty(document, 'hidden', {{ value: {hidden}, configurable: true }}); \
             document.dispatchEvent(new Event('visibilitychange'))"
        ))
    };
    hide(true);
    browser.wait("!polling && !list.open && !due.open");
    let asked = "return performance.getEntriesByType('resource').length";
    let before: Value = browser.run(asked);
    browser.run("performance.clearResourceTimings(); window.since = Date.now()");
    browser.wait("Date.now() - window.since > 5000");
    assert_eq!(browser.run(asked), json!(0), "before it was hidden: {before}");
    hide(false);
    browser.wait("performance.getEntriesByType('resource').length > 0");
}
