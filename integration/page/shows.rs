//! What the page shows: items, when they are due, whose they are, and how they ended.

use super::{config, opened, press, row_has, says, shown, some_of_each, was_well_behaved, FAR, SOON};
use serde_json::json;
use std::time::Duration;
use tidegate_harness::{wait_until, Site};

#[test]
fn items_applications_and_what_is_due_when() {
    let site = Site::new("page");
    let Some((daemon, browser)) = shown(&site) else { return };
    browser.wait(&says("#state", "running"));
    browser.wait(&row_has("applications", &["shop", "12", "0"]));
    browser.wait(&row_has("applications", &["nobody", "parked", "2"]));
    browser.wait(&row_has("parked", &["nobody", "2", "returned by the broker: 312 NO_ROUTE"]));
    browser.wait(&row_has("rows", &["letter", "mail", "anna", "waiting"]));
    browser.wait("[...document.querySelectorAll('#rows tr')].length === 15");
    browser.wait(&says("#due-text", "Nothing becomes due within the next minute"));
    browser.click("[data-span=hour]");
    browser.wait(&says("#due-text", "11 items become due within the next hour"));
    browser.click("[data-span=day]");
    browser.wait(&says("#due-text", "13 items become due within the next day"));
    browser.click("[data-span=minute]");
    site.client.publish_all((0..3).map(|n| site.push("shop", "1").id(&format!("soon-{n}")).delay(55_000)));
    browser.wait(&says("#due-text", "3 items become due within the next minute"));
    browser.click("[data-span=day]");
    browser.run(
        "const select = document.getElementById('due-application'); \
                 select.value = 'mail'; select.dispatchEvent(new Event('change'))",
    );
    browser.wait(&says("#due-text", "1 item becomes due within the next day"));
    browser.run("document.getElementById('due-details').open = true");
    browser.wait("document.querySelectorAll('#due-rows tr').length === 1");
    let times = browser.run("return [...document.querySelectorAll('#rows td.time')].map((td) => td.title)");
    assert!(times
        .as_array()
        .is_some_and(|all| all.iter().all(|t| t.as_str().is_some_and(|t| t.contains('T')))));
    // The page states when a count is incomplete; simulated here, at once, since it asks anew every few seconds.
    let shown = browser.run(
        "timeline = { ...timeline, counted_until: timeline.from + 10 * timeline.bucket_ms }; showTimeline(); \
         return { text: document.getElementById('due-text').innerText, \
                  pale: document.querySelectorAll('#due-chart rect.unsure').length }",
    );
    let text = shown["text"].as_str().unwrap_or_default();
    assert!(text.starts_with("At least 1 item becomes due") && text.contains("it is exact until"), "{shown}");
    assert_eq!(shown["pale"], 38);
    // The page follows new items.
    site.client.publish(&site.push("mail", "1").id("new").delay(FAR));
    browser.wait(&row_has("rows", &["new", "mail"]));
    let (status, told) = daemon.ask("POST", "/api/v1/items/mail/new/reschedule?delay=0");
    assert_eq!((status, &told["result"]), (200, &json!("rescheduled")), "{told}");
    browser.wait(&format!("!({})", row_has("rows", &["new", "mail"])));
    browser.wait("document.getElementById('late-figures').innerText.match(/within\\s+[\\d.]+ (µs|ms|s)/)");
    browser.wait("document.querySelector('#rates-chart polyline.out')");
    // With several shards the counters of the map have a line; simulated here.
    let ends = |map: &str| {
        browser.run(&format!(
            "board = {{ ...board, map: {map} }}; showEnds(); return document.getElementById('ends').textContent"
        ))
    };
    let counters = "{ forwarded: 40, misplaced: 3, bound: 5, corrected: 2, bind_failures: 1 }";
    let line = "mapforwarded: 40 by the sharder, 3 by shards; bindings: 5 made, 2 corrected, 1 failed";
    let (several, alone) = (ends(counters), ends("undefined"));
    assert!(several.as_str().is_some_and(|text| text.contains(line)), "{several}");
    assert!(alone.as_str().is_some_and(|text| !text.contains("map")), "{alone}");
    was_well_behaved(&browser, &daemon);
}

/// Where several nodes share the shards, some may have no node; simulated here.
#[test]
fn missing_shards_are_named_and_no_rate_spans_their_return() {
    let site = Site::new("pagemissing");
    let Some((daemon, browser)) = shown(&site) else { return };
    browser.wait(&row_has("applications", &["shop", "12", "0"]));
    browser.run(
        "const real = window.fetch; window.missing = [1, 3]; window.fetch = async (where, options) => { \
             const answer = await real(where, options); \
             if (!/state|items|timeline/.test(where) || !window.missing.length) return answer; \
             return new Response(JSON.stringify({ ...await answer.json(), missing_shards: window.missing }), \
                 { status: answer.status }); \
         }",
    );
    let named = "Not all: the items of shards 1, 3 are missing, since no node tells of them.";
    for place in ["#applications-text", "#due-text", "#items-text"] {
        browser.wait(&says(place, named));
    }
    browser.type_into("#search-name", "nobody-knows");
    press(&browser, "#search", "Search");
    browser.wait(&says("#found", named));
    browser.wait(&says("#rows", "No customer of this name has items"));
    // The counters of what comes back are no traffic.
    let rates = |change: &str| {
        browser.run(&format!(
            "traffic.of = ''; sample(board); sample({{ ...board, at: board.at + 1000 }}); \
             const told = structuredClone(board); told.at += 2000; {change}; sample(told); showRates(); \
             return [traffic.samples.length, document.getElementById('rate-in').textContent]"
        ))
    };
    assert_eq!(rates("told.totals.accepted += 20"), json!([3, "10.0/s"]));
    for change in
        ["missing_shards = []", "missing_shards = [1]", "shards[0].owner = 'another'", "shards[0].epoch = 99"]
    {
        assert_eq!(
            rates(&format!("told.totals.accepted += 1000; told.{change}")),
            json!([1, "–"]),
            "{change}"
        );
    }
    browser.run("window.missing = []");
    browser.wait("document.getElementById('applications-text').textContent === ''");
    was_well_behaved(&browser, &daemon);
}

#[test]
fn a_slow_list_holds_nothing_else_up() {
    let site = Site::new("pageslow");
    let Some((daemon, browser)) = shown(&site) else { return };
    browser.wait("document.querySelectorAll('#rows tr').length === 15");
    browser.run(
        "const real = window.fetch; const open = []; window.asked = []; \
         window.go = () => { window.fetch = real; open.forEach((resolve) => resolve()); }; \
         window.fetch = async (where, options) => { \
             const slow = /items|timeline/.exec(where); \
             if (slow) { window.asked.push(slow[0]); await new Promise((resolve) => open.push(resolve)); } \
             return real(where, { ...options, signal: undefined }); \
         }",
    );
    browser.wait("window.asked.length === 2");
    site.client.publish(&site.push("shop", "1").id("late").delay(FAR));
    browser.wait(&row_has("applications", &["shop", "13", "0"]));
    // One question of each kind is open, however many rounds pass.
    let at = browser.run("return board.at");
    browser.wait(&format!("board.at > {at} + 7000"));
    assert_eq!(browser.run("return window.asked.sort()"), json!(["items", "timeline"]));
    assert!(!browser
        .run(&format!("return {}", row_has("rows", &["late", "shop"])))
        .as_bool()
        .unwrap_or(true));
    browser.run("window.go()");
    browser.wait(&row_has("rows", &["late", "shop"]));
    was_well_behaved(&browser, &daemon);
}

#[test]
fn an_item_and_a_customer_are_found_by_name() {
    let site = Site::new("pagesearch");
    let daemon = site.start(&config(&site));
    some_of_each(&site, &daemon);
    site.client.publish(&site.push("mail", "1").id("gone"));
    wait_until("it has left", Duration::from_secs(10), || {
        daemon.ask("GET", "/api/v1/items/mail/gone").1["state"] == "sent"
    });
    let Some(browser) = opened(&site, &daemon) else { return };
    browser.wait(&row_has("applications", &["shop"]));
    let search = |text: &str| {
        press(&browser, "#search", "Clear");
        browser.wait("document.getElementById('search-name').value === ''");
        browser.type_into("#search-name", text);
        press(&browser, "#search", "Search");
    };
    // An item is found without naming its application.
    search("far");
    browser.wait(&says("#found [data-of=item]", "Item far"));
    let card = browser.text("#found [data-of=item]");
    assert!(card.contains("waiting") && card.contains("ben") && card.contains("received"), "{card}");
    assert!(card.contains("in 2 h 5") || card.contains("in 3 h"), "{card}");
    search("gone");
    browser.wait(&says("#found [data-of=item]", "in batch"));
    search("p-1");
    browser.wait(&says("#found [data-of=item]", "312 NO_ROUTE"));
    search("anna");
    browser.wait("document.querySelectorAll('#found [data-of=customer]').length === 2");
    browser.wait("document.querySelectorAll('#rows tr').length === 9");
    // Too long for the name of a customer; the page continues.
    search(&"n".repeat(230));
    browser.wait(&says("#found", "No customer and no item of this name is known"));
    let shown = browser.run("return list.at");
    browser.wait(&format!("list.at > {shown} && document.getElementById('silence').hidden"));
    search("nobody-knows");
    browser.wait(&says("#rows", "No customer of this name has items"));
    press(&browser, "#search", "Clear");
    browser.wait("document.querySelectorAll('#rows tr').length === 15");
    was_well_behaved(&browser, &daemon);
}

/// Producers choose these names.
#[test]
fn hostile_names_are_text() {
    let site = Site::new("pagehostile");
    let daemon = site.start(&config(&site));
    let hack = "<img src=x onerror=\"window.hacked=1\">";
    let script = "</td><script>window.hacked=2</script>";
    let turned = "\u{202e}gnitirw \u{0}\n\u{7}";
    let long = "m".repeat(200);
    site.client.publish_all([
        site.push(hack, "1").id(script).customer("<b>c</b>").delay(FAR),
        site.push("shop", "1").id("'\"><svg onload=window.hacked=3>").customer(hack).delay(FAR),
        site.push("shop", "1").id(turned).customer(&long).delay(FAR),
        site.push(&long, "1").id(&long).customer(&long),
        site.push("..", "1").id("dots").delay(FAR),
    ]);
    wait_until("all are there", Duration::from_secs(10), || daemon.items("waiting") == 5);
    let Some(browser) = opened(&site, &daemon) else { return };
    browser.wait(&row_has("applications", &[hack]));
    browser.wait(&row_has("rows", &[script, "<b>c</b>"]));
    browser.type_into("#search-name", hack);
    press(&browser, "#search", "Search");
    browser.wait(&says("#found [data-of=customer]", hack));
    press(&browser, "#found", "Cancel all…");
    browser.wait(&says("#ask-title", hack));
    browser.wait(&says("#ask-count", "1 item: 1 waiting"));
    press(&browser, "#ask", "Cancel 1 item");
    browser.wait(&says("#outcomes", "Cancelled: 1 item"));
    // Browsers normalise this name away, so the page refuses and does not ask for another.
    super::press_in_row(&browser, "applications", "..", "Pause…");
    browser.wait(&says("#outcomes", "A browser cannot ask for the name \"..\""));
    let strange = "return [window.hacked ?? null, document.querySelectorAll('img').length, \
         document.scripts.length, document.querySelectorAll('b').length]";
    assert_eq!(browser.run(strange), json!([null, 0, 1, 0]));
    let wide = "return document.documentElement.scrollWidth <= document.documentElement.clientWidth";
    assert_eq!(browser.run(wide), json!(true), "a long name makes the page wide");
    was_well_behaved(&browser, &daemon);
}

/// A text field drops line breaks: read back from it, these names would be those of another customer.
#[test]
fn a_click_on_a_customer_opens_this_one_and_none_whose_name_is_alike() {
    let site = Site::new("pagebreaks");
    let daemon = site.start(&config(&site));
    let (broken, other) = ("sh\nop", "an\nna");
    site.client.publish_all([
        site.push("shop", "1").id("1").customer("anna").delay(SOON),
        site.push("shop", "1").id("2").customer("anna").delay(SOON),
        site.push(broken, "1").id("3").customer(other).delay(SOON),
    ]);
    wait_until("all wait", Duration::from_secs(20), || daemon.items("waiting") == 3);
    let Some(browser) = opened(&site, &daemon) else { return };
    browser.wait("document.querySelectorAll('#rows tr').length === 3");
    browser.run(
        "[...document.querySelectorAll('#rows tr')].find((row) => row.cells[4].textContent.trim() === '3') \
                 .cells[3].querySelector('button').click()",
    );
    let title = json!(format!("Customer {other}"));
    browser.wait(&format!("document.querySelector('#found [data-of=customer] h3')?.textContent === {title}"));
    browser.wait("document.querySelectorAll('#rows tr').length === 1");
    let shown =
        "return [...document.querySelector('#rows tr').cells].slice(2, 5).map((cell) => cell.textContent)";
    assert_eq!(browser.run(shown), json!([broken, other, "3"]));
    let offered =
        "return [...document.querySelectorAll('#known-applications option')].map((one) => one.value)";
    assert_eq!(browser.run(offered), json!(["shop"]), "the field would make another name of the other one");
    was_well_behaved(&browser, &daemon);
}

/// Joined with a line break, application and id of both are equal; and both arrived in one envelope.
#[test]
fn items_whose_names_are_alike_once_joined_have_rows_of_their_own() {
    let site = Site::new("pagekeys");
    let daemon = site.start(&config(&site));
    let entry = |application: &str, id: &str| json!({ "application": application, "id": id, "payload": 1, "delay_ms": SOON });
    let body = json!([entry("a\nb", "c"), entry("a", "b\nc")]).to_string();
    site.client.publish(&site.push("", body).content_type("application/vnd.tidegate+json"));
    wait_until("both wait", Duration::from_secs(20), || daemon.items("waiting") == 2);
    let Some(browser) = opened(&site, &daemon) else { return };
    browser.wait("document.querySelectorAll('#rows tr').length === 2");
    let ids = "return [...document.querySelectorAll('#rows tr')].map((row) => row.cells[4].textContent.trim()).sort()";
    assert_eq!(browser.run(ids), json!(["b\nc", "c"]));
    was_well_behaved(&browser, &daemon);
}
