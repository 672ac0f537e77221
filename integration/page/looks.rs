//! The layout: narrow screens, dark mode, and keyboard use.

use super::{row_has, shown, was_well_behaved};
use serde_json::{json, Value};
use std::path::{Path, PathBuf};
use tidegate_harness::{Browser, Site};

/// Saves a picture for inspection, in the folder named by `TIDEGATE_PICTURES`, otherwise in the test's
/// directory.
fn picture(browser: &Browser, dir: &Path, name: &str) {
    let dir = std::env::var_os("TIDEGATE_PICTURES").map_or_else(|| dir.to_owned(), PathBuf::from);
    browser.draw(&dir.join(name), 4_000);
}

pub(super) fn size(browser: &Browser, width: u32, height: u32, mobile: bool) {
    let metrics = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": mobile });
    browser.command("Emulation.setDeviceMetricsOverride", &metrics);
}

pub(super) fn scheme(browser: &Browser, name: &str) {
    let features = json!([{ "name": "prefers-color-scheme", "value": name }]);
    browser.command("Emulation.setEmulatedMedia", &json!({ "features": features }));
}

/// Brightness, from 0 to 255, of a colour property of the page's body.
fn light(browser: &Browser, property: &str) -> f64 {
    let told = browser.run(&format!("return getComputedStyle(document.body).{property}"));
    let text = told.as_str().unwrap_or_default().to_owned();
    let parts =
        text.split(|c: char| !c.is_ascii_digit() && c != '.').filter_map(|part| part.parse::<f64>().ok());
    parts.take(3).sum::<f64>() / 3.0
}

#[test]
fn narrow_dark_and_without_a_pointer() {
    let site = Site::new("pagelooks");
    let Some((daemon, browser)) = shown(&site) else { return };
    size(&browser, 1280, 1000, false);
    browser.wait(&row_has("rows", &["far"]));
    browser.wait("document.querySelector('#due-chart svg') && document.querySelector('#late-chart svg')");
    scheme(&browser, "light");
    assert!(light(&browser, "backgroundColor") > 200.0 && light(&browser, "color") < 80.0);
    picture(&browser, &site.dir, "light.png");
    scheme(&browser, "dark");
    assert!(light(&browser, "backgroundColor") < 60.0 && light(&browser, "color") > 180.0);
    picture(&browser, &site.dir, "dark.png");
    let fits = "return [document.documentElement.scrollWidth, document.documentElement.clientWidth]";
    for width in [320, 360, 412, 768] {
        size(&browser, width, 780, true);
        browser.wait(&format!("document.documentElement.clientWidth === {width}"));
        assert_eq!(browser.run(fits), json!([width, width]), "it scrolls sideways at {width}");
    }
    size(&browser, 375, 780, true);
    scheme(&browser, "light");
    browser.wait("document.querySelector('#due-chart svg').viewBox.baseVal.width < 375");
    picture(&browser, &site.dir, "phone.png");
    // Every control has a name and is reached by the Tab key.
    let nameless = "return [...document.querySelectorAll('button, input, select, summary, a')] \
         .filter((one) => !(one.innerText || one.labels?.length || one.getAttribute('aria-label')) \
         && !one.closest('[hidden], dialog')).map((one) => one.outerHTML)";
    assert_eq!(browser.run(nameless), json!([]));
    size(&browser, 1280, 1000, false);
    browser.run("document.activeElement.blur(); window.scrollTo(0, 0)");
    let mut reached: Vec<Value> = vec![];
    for _ in 0..12 {
        browser.key('\u{e004}');
        let script = "const one = document.activeElement; \
             return [one.innerText || one.id, getComputedStyle(one).outlineStyle !== 'none']";
        let told = browser.run(script);
        assert_eq!(told[1], json!(true), "{} shows no focus", told[0]);
        reached.push(told[0].clone());
    }
    for name in ["Skip to the items", "Next minute", "Since the start", "application-filter"] {
        assert!(reached.contains(&json!(name)), "{name} is not in {reached:?}");
    }
    was_well_behaved(&browser, &daemon);
}
