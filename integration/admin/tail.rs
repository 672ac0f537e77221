//! `tail` shows new batches, and takes a backlog only with `--drain`.

use std::process::{Command, Stdio};
use std::time::Duration;
use tidegate_harness::{binary, wait_until, Node, Site};

#[test]
fn a_parked_backlog_is_left_alone() {
    let site = Site::new("tailparked");
    // A probe on its way is in flight and not parked, so the next one waits for an order.
    let retry = r#"{ min = "600s", max = "600s" }"#;
    let mut daemon = site.start(&site.config().set("defaults.retry", retry));
    site.client.publish(&site.push("shop", "1").id("kept"));
    wait_until("it is parked", Duration::from_secs(10), || daemon.items("parked") == 1);
    let refused = daemon.cli(&["tail", "shop", "--for", "2s"]);
    assert_eq!(refused.code, 2, "{refused:?}");
    assert!(
        refused.err.contains("1 of its items are parked") && refused.err.contains("--drain"),
        "{refused:?}"
    );
    daemon.holds("parked", 1);
    let drained = std::thread::scope(|scope| {
        let tail = scope.spawn(|| daemon.cli(&["tail", "shop", "--count", "1", "--for", "120s", "--drain"]));
        // The first probes may leave before its queue is bound.
        while !tail.is_finished() {
            daemon.ask("POST", "/api/v1/applications/shop/retry");
            std::thread::sleep(Duration::from_millis(500));
        }
        tail.join().expect("the command ends")
    });
    assert!(drained.code == 0 && drained.out.contains("kept"), "{drained:?}");
    // If the daemon does not answer, the command is refused too.
    daemon.kill9();
    let unsure = daemon.cli(&["tail", "shop", "--for", "100ms"]);
    assert!(unsure.code == 1 && unsure.err.contains("--drain"), "{unsure:?}");
}

/// Nobody reads the output at first, and a batch is larger than a pipe: so the command is still printing the
/// first one, the last that it counts, when the others have been confirmed.
#[test]
fn a_drain_prints_all_that_it_has_taken() {
    let site = Site::new("taildrain");
    let retry = r#"{ min = "600s", max = "600s" }"#;
    let daemon = site.start(&site.config().set("defaults.retry", retry));
    let ids = ["first-of-three", "second-of-three", "third-of-three"];
    for id in ids {
        site.client.publish(&site.push("shop", vec![b'x'; 200_000]).id(id));
    }
    wait_until("they are parked", Duration::from_secs(20), || daemon.items("parked") == 3);
    let tail = Command::new(binary())
        .args(["tail", "shop", "--drain", "--count", "1", "--for", "300s", "--config"])
        .arg(daemon.config_file())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the command starts");
    wait_until("all of them have left", Duration::from_secs(120), || {
        // The first probes may leave before its queue is bound.
        daemon.ask("POST", "/api/v1/applications/shop/retry");
        daemon.state()["totals"]["confirmed"] == 3
    });
    let told = tail.wait_with_output().expect("its end");
    let (out, err) = (String::from_utf8_lossy(&told.stdout), String::from_utf8_lossy(&told.stderr));
    assert_eq!(told.status.code(), Some(0), "{err}");
    let printed = ids.map(|id| out.matches(id).count() > 0);
    assert_eq!(printed, [true; 3], "{err}");
    // Its queue is gone.
    site.client.publish(&site.push("shop", "1").id("late"));
    wait_until("the next one is parked", Duration::from_secs(20), || daemon.items("parked") == 1);
}

#[test]
fn nothing_in_the_time_given_has_an_exit_code() {
    let site = Site::new("tailnone");
    let daemon = site.start(&site.config());
    let none = daemon.cli(&["tail", "shop", "--for", "200ms"]);
    assert_eq!((none.code, none.out.as_str()), (3, ""), "{none:?}");
    assert!(none.err.contains("no batch arrived"), "{none:?}");
}

#[test]
fn it_listens_where_batches_are_published() {
    let Some(node) = Node::controlled("it_listens_where_batches_are_published") else { return };
    let site = Site::on(node, "tailvhost");
    node.ctl(&["add_vhost", "tail-out"]);
    let (_, _, user, _) = node.login();
    node.ctl(&["set_permissions", "-p", "tail-out", &user, ".*", ".*", ".*"]);
    let daemon = site.start(&site.config().text("egress.uri", &node.uri_of(&user, "tail-out")));
    let batch = std::thread::scope(|scope| {
        let tail = scope.spawn(|| daemon.cli(&["tail", "shop", "--count", "1", "--for", "120s"]));
        wait_until("a queue is bound there", Duration::from_secs(60), || {
            let keys = "[element(3, Binding) || Binding <- rabbit_binding:list(<<\"tail-out\">>)]";
            node.eval(&format!("lists:member(<<\"shop\">>, {keys}).")) == "true"
        });
        site.client.publish(&site.push("shop", "1").id("there"));
        tail.join().expect("the command ends")
    });
    assert!(batch.code == 0 && batch.out.contains("there"), "{batch:?}");
}
