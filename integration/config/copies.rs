//! `copy_headers` and `copy_properties`: accepted and rejected values.

use super::{faults, good, Dir};

#[test]
fn what_is_passed_on_is_read_by_application() {
    let c = good(
        r#"
        [defaults]
        copy_headers = ["traceparent", "x-tenant"]
        copy_properties = ["type"]
        [applications.shop]
        copy_headers = []
        copy_properties = ["correlation_id", "timestamp"]
        [applications.mail]
        format = "passthrough"
        [applications.events]
        format = "cloudevents"
        "#,
    );
    let of = |application: &str| {
        let copies = &c.readings.of(application).copies;
        let properties: Vec<&str> = copies.properties.iter().map(|property| property.name()).collect();
        (copies.headers.join(" "), properties.join(" "))
    };
    let defaults = ("traceparent x-tenant".to_owned(), "type".to_owned());
    assert_eq!((of("other"), of("events")), (defaults.clone(), defaults));
    assert_eq!(of("shop"), (String::new(), "correlation_id timestamp".to_owned()));
    assert_eq!(of("mail"), Default::default(), "it carries everything in any case");
    let dir = Dir::new("");
    let set = [("TIDEGATE__APPLICATIONS__shop__COPY_HEADERS", "[\"a\"]")];
    assert_eq!(dir.load(&set).unwrap().config.readings.of("shop").copies.headers, ["a"]);
}

#[test]
fn what_cannot_be_passed_on_is_refused() {
    let many: Vec<String> = (0..33).map(|n| format!("{:?}", format!("h{n}"))).collect();
    for (config, fault) in [
        (r#"copy_headers = "traceparent""#, r#"defaults.copy_headers: is not a list: write ["..", ".."]"#),
        (r#"copy_headers = ["a", ""]"#, "defaults.copy_headers: holds an empty name"),
        (r#"copy_headers = ["a", "b", "a"]"#, r#"defaults.copy_headers: names "a" twice"#),
        (r#"copy_headers = ["x-delay"]"#, r#"names "x-delay", which tidegate itself reads or writes"#),
        (r#"copy_headers = ["x-tidegate-error"]"#, "which tidegate itself reads or writes"),
        (r#"copy_headers = ["BCC"]"#, r#"names "BCC", which is never copied"#),
        (&format!("copy_headers = [\"{}\"]", "h".repeat(256)), "holds a name of 256 bytes: at most 255"),
        (&format!("copy_headers = [{}]", many.join(",")), "names 33 headers: at most 32"),
        ("copy_headers = [1]", "defaults.copy_headers: is a number; expected text in quotes"),
        (
            r#"copy_properties = ["corelation_id"]"#,
            r#""corelation_id" is not one of "correlation_id", "reply_to", "type", "timestamp", "priority", "app_id", "cluster_id"; did you mean `correlation_id`?"#,
        ),
        (r#"copy_properties = ["type", "type"]"#, r#"defaults.copy_properties: names "type" twice"#),
    ] {
        let told = faults(&format!("[defaults]\n{config}"));
        assert!(told.contains(fault) && told.lines().count() == 1, "{config}: {told}");
    }
}

#[test]
fn events_cannot_carry_every_name() {
    let events = "[defaults]\nformat = \"cloudevents\"\n";
    for (keys, fault) in [
        (
            r#"copy_headers = ["x-tenant", "X-Tenant"]"#,
            r#"copy_headers: "x-tenant" and "X-Tenant" would both be xtenant in CloudEvents"#,
        ),
        (r#"copy_headers = ["source"]"#, r#""source" would be source in CloudEvents, which every event has"#),
        (r#"copy_headers = ["--"]"#, r#""--" has neither letters nor digits"#),
        (
            "copy_properties = [\"correlation_id\"]\ncopy_headers = [\"correlationid\"]",
            r#""correlation_id" and "correlationid" would both be correlationid"#,
        ),
    ] {
        let told = faults(&format!("{events}{keys}"));
        assert!(told.contains(fault) && told.lines().count() == 1, "{keys}: {told}");
        good(&format!("[defaults]\n{keys}"));
    }
    // The fault is reported at the table that sets one of the keys involved.
    let inherited = "[defaults]\ncopy_headers = [\"id\"]\n[applications.shop]\nformat = \"cloudevents\"";
    assert!(faults(inherited).starts_with("config.toml:4: applications.shop.format: \"id\" would be id"));
    let both = format!("{events}copy_headers = [\"id\"]\n[applications.shop]\nwindow = \"1s\"");
    assert_eq!(faults(&both).lines().count(), 1);
    // Every event has the type anyway.
    good(&format!("{events}copy_properties = [\"type\"]"));
}
