//! The pictures in the documents: a busy run of several applications, one of them paused, one parked.
//!
//! A test that is ignored by default: `cargo test --test integration page::picture -- --ignored` writes them
//! to the folder named by `TIDEGATE_PICTURES`.

use super::looks::{scheme, size};
use super::{opened, press, press_in_row, says};
use serde_json::json;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use tidegate_harness::{alone, Daemon, Moments, Site};

/// Duration of the load before the picture is taken.
const BUSY: Duration = Duration::from_secs(100);
const ROUND: Duration = Duration::from_millis(200);

/// The requests of a fifth of a second.
fn requests(site: &Site<'_>, round: u64, moments: &mut Moments) -> Vec<tidegate_harness::Push> {
    let mut all = vec![];
    let customer = |moments: &mut Moments| format!("customer-{}", 1_000 + moments.pick(0, 400));
    for n in 0..30 {
        let who = customer(moments);
        all.push(site.push("shop", "1").id(&format!("order-{round}-{n}")).customer(&who));
    }
    for n in 0..12 {
        let delay = moments.pick(500, 90_000) as i64;
        all.push(site.push("mail", "1").id(&format!("mail-{round}-{n}")).delay(delay));
    }
    for n in 0..8 {
        let delay = moments.pick(20_000, 7_200_000) as i64;
        let who = customer(moments);
        all.push(
            site.push("reminders", "1").id(&format!("reminder-{round}-{n}")).customer(&who).delay(delay),
        );
    }
    if round.is_multiple_of(4) {
        let who = customer(moments);
        all.push(site.push("invoices", "1").id(&format!("invoice-{round}")).customer(&who).delay(2_000));
        all.push(site.push("sms", "1").id(&format!("sms-{round}")).customer(&who));
    }
    all
}

fn pause(daemon: &Daemon, name: &str) {
    assert_eq!(daemon.ask("POST", &format!("/api/v1/applications/{name}/pause")).0, 200);
}

/// This test runs alone.
mod alone {
    use super::*;

    #[test]
    #[ignore = "it draws a picture for the documents"]
    fn of_a_busy_run() {
        alone();
        let site = Site::new("picture");
        let daemon = site.start(&site.config());
        for application in ["shop", "mail", "reminders", "invoices"] {
            site.application(application);
        }
        pause(&daemon, "invoices");
        let Some(browser) = opened(&site, &daemon) else { return };
        size(&browser, 1240, 900, false);
        scheme(&browser, "light");
        let mut moments = Moments::seeded(7, "picture");
        let begun = Instant::now();
        for round in 0.. {
            let next = begun + ROUND * round;
            if next > begun + BUSY {
                break;
            }
            std::thread::sleep(next.saturating_duration_since(Instant::now()));
            site.client.publish_all(requests(&site, round.into(), &mut moments));
        }
        browser.wait(&says("#parked", "312 NO_ROUTE"));
        let dir = std::env::var_os("TIDEGATE_PICTURES").map_or_else(|| site.dir.clone(), PathBuf::from);
        let end =
            "return document.getElementById('parked').closest('section').getBoundingClientRect().bottom \
             + window.scrollY + 7";
        let height = browser.run(end).as_f64().unwrap_or(0.0) as u32;
        browser.draw(&dir.join("page.png"), height);
        browser.click("[data-span=hour]");
        browser.wait(&says("#due-text", "within the next hour"));
        scheme(&browser, "dark");
        browser.draw(&dir.join("page-dark.png"), height);
        scheme(&browser, "light");
        press_in_row(&browser, "applications", "shop", "Pause…");
        browser.wait(&says("#ask-count", "waiting"));
        browser.draw(&dir.join("page-dialog.png"), 900);
        press(&browser, "#ask", "Leave it");
        size(&browser, 375, 780, true);
        browser.wait("document.querySelector('#due-chart svg').viewBox.baseVal.width < 375");
        browser.draw(&dir.join("page-phone.png"), 3_000);
        assert_eq!(browser.run("return document.documentElement.scrollWidth"), json!(375));
    }
}
