//! Dead letters on the page: loaded on request, sent back, saved and dropped.

use super::acts::asked;
use super::{opened, press, press_in_row, row_has, says, was_well_behaved};
use std::time::Duration;
use tidegate_harness::{wait_until, Browser, Push, Site};

/// Waits until the page shows what it has been asked for, and reads the queue again when a busy broker does not tell of
/// its letters in time.
fn wait_for_letters(browser: &Browser, shown: &str) {
    let failed = says("#dead-text", "cannot be read");
    browser.wait(&format!(
        "(() => {{ if ({failed}) document.getElementById('dead-look').click(); return {shown}; }})()"
    ));
}

#[test]
fn dead_letters_are_looked_at_sent_back_saved_and_dropped() {
    let site = Site::new("pagedead");
    let inbox = site.inbox("shop");
    let daemon = site.start(&site.config());
    // Names from producers are not treated as markup.
    let wrong = |application: &str, id: &str| site.push(application, "{}").with("x-delay", "soon").id(id);
    site.client.publish_all([
        wrong("shop", "s-1"),
        wrong("shop", "<b>s-2</b>"),
        wrong("mail", "m-1"),
        wrong("mail", "m-2"),
    ]);
    wait_until("they are dead", Duration::from_secs(20), || site.client.depth(&site.dead()) == Some(4));
    let Some(browser) = opened(&site, &daemon) else { return };
    press(&browser, "#dead", "Read the queue");
    wait_for_letters(&browser, &row_has("dead-groups", &["invalid", "shop", "2"]));
    browser.wait(&says("#dead-text", "4 letters"));
    press(&browser, "#dead", "Save all as NDJSON");
    browser.wait(&says("#outcomes", "Saved: 4 letters."));
    press_in_row(&browser, "dead-groups", "shop", "Show");
    wait_for_letters(&browser, &row_has("dead-rows", &["<b>s-2</b>"]));
    press_in_row(&browser, "dead-rows", "s-1", "Show");
    browser.wait(&says("#dead-letter", "\"x-delay\": \"soon\""));
    press_in_row(&browser, "dead-rows", "s-1", "Send back…");
    asked(&browser, "Send back s-1?", "1 letter", "Leave it");
    site.lies(&site.dead(), 4);
    press_in_row(&browser, "dead-rows", "s-1", "Send back…");
    asked(&browser, "Send back s-1?", "1 letter", "Send back");
    browser.wait(&says("#outcomes", "Sent back: 1 letter; 3 left in the queue: s-1"));
    assert_eq!(inbox.batch().ids(), ["s-1"]);
    // The page has reloaded the queue.
    wait_for_letters(&browser, &row_has("dead-groups", &["invalid", "shop", "1"]));
    press_in_row(&browser, "dead-groups", "mail", "Drop…");
    asked(&browser, "Drop invalid of mail?", "2 letters", "Drop");
    browser.wait(&says("#outcomes", "Dropped: 2 letters; 1 left in the queue: invalid of mail"));
    wait_for_letters(&browser, &format!("!({})", row_has("dead-groups", &["mail"])));
    site.lies(&site.dead(), 1);
    was_well_behaved(&browser, &daemon);
}

/// Letters that are dropped after an incomplete save would be lost.
#[test]
fn a_save_tells_of_bodies_that_are_too_long_for_it() {
    let site = Site::new("pagelong");
    let daemon = site.start(&site.config());
    let letter = |id: &str, bytes: usize| {
        let letter = Push::new(&site.dead(), "shop", "x".repeat(bytes)).id(id);
        letter.with("x-tidegate-reason", "invalid").with("x-application", "shop")
    };
    const MIB: usize = 1 << 20;
    site.client.publish_all([letter("a", 9 * MIB), letter("b", 8 * MIB), letter("c", 9 * MIB)]);
    wait_until("they are there", Duration::from_secs(20), || site.client.depth(&site.dead()) == Some(3));
    let Some(browser) = opened(&site, &daemon) else { return };
    press(&browser, "#dead", "Read the queue");
    wait_for_letters(&browser, &says("#dead-text", "3 letters"));
    press(&browser, "#dead", "Save all as NDJSON");
    let told = "Saved: 3 letters; 2 without their bodies, which are longer than 8 MiB.";
    browser.wait(&says("#outcomes .bad", told));
    was_well_behaved(&browser, &daemon);
}

/// What the calls before a failure have done is told.
#[test]
fn a_call_that_fails_later_does_not_deny_what_was_done_before_it() {
    let site = Site::new("pagepart");
    let daemon = site.start(&site.config());
    let wrong = |n: u32| site.push("shop", "{}").with("x-delay", "soon").id(&format!("s-{n}"));
    site.client.publish_all((0..5).map(wrong));
    wait_until("they are dead", Duration::from_secs(20), || site.client.depth(&site.dead()) == Some(5));
    let Some(browser) = opened(&site, &daemon) else { return };
    press(&browser, "#dead", "Read the queue");
    wait_for_letters(&browser, &row_has("dead-groups", &["invalid", "shop", "5"]));
    // The first call of an action handles two and names a cursor; the second one fails.
    let failing = |answer: &str| {
        browser.run(&format!(
            "window.real ??= window.fetch; let calls = 0; \
             window.fetch = async (where, options) => {{ \
                 if (options.method !== 'DELETE') return window.real(where, options); \
                 if (++calls > 1) {answer}; \
                 const told = await (await window.real(where.replace('limit=1000', 'limit=2'), options)).json(); \
                 return new Response(JSON.stringify({{ ...told, more: true, cursor: 'c' }})); \
             }}"
        ));
    };
    failing("return new Response('{\"error\": \"this walk has ended\"}', { status: 409 })");
    press_in_row(&browser, "dead-groups", "shop", "Drop…");
    asked(&browser, "Drop invalid of shop?", "5 letters", "Drop");
    browser
        .wait(&says("#outcomes .bad", "Dropped: 2 letters; stopped: this walk has ended: invalid of shop"));
    wait_for_letters(&browser, &row_has("dead-groups", &["invalid", "shop", "3"]));
    // This call may have come through.
    failing("throw new TypeError('gone')");
    press_in_row(&browser, "dead-groups", "shop", "Drop…");
    asked(&browser, "Drop invalid of shop?", "3 letters", "Drop");
    let told = "stopped: it cannot be reached, and the last call may still be carried out: invalid of shop";
    browser.wait(&says("#outcomes .bad:last-child", &format!("Dropped: 2 letters; {told}")));
    site.lies(&site.dead(), 1);
    assert!(!browser.text("#outcomes").contains("Not done"), "{}", browser.text("#outcomes"));
    was_well_behaved(&browser, &daemon);
}
