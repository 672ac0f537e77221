//! Each node answers for all shards: what it lists, counts, looks up and changes is that of all nodes; what no
//! node can answer for is named; the node that is asked wants its token, and records who asked.
//!
//! Judges promise 15.

use super::{started, whole, Claim, Nodes};
use crate::admin::audit;
use crate::shards::{consumed, home, listed, missing, nothing_more, stored, walk, Walk, COUNT, LIMIT};
use serde_json::{json, Value};
use std::collections::BTreeSet;
use std::fs;
use tidegate_harness::lapin::types::FieldTable;
use tidegate_harness::{now_ms, wait_until, Asker, Client, Daemon, Inbox, Push, Verdict};

/// One hour, ms.
const HOUR: u64 = 3_600_000;
/// Time between two dues, ms.
const STEP: u64 = 10;
/// Number of items that wait at first, as many of each application.
const ITEMS: u64 = 160;
/// Those of one application, and of one shard.
const OF_APPLICATION: u64 = ITEMS / 8;
const OF_SHARD: u64 = ITEMS / COUNT as u64;

/// An item, by its application and id.
type Named = (String, String);

/// Two nodes with two of the shards each, and items that wait there.
struct Face {
    nodes: Nodes,
    /// Who has which shard.
    claims: Vec<Claim>,
    /// The applications, in the order of their homes, two in each shard.
    inboxes: Vec<(String, Inbox)>,
    /// The items that wait, in the order of due. Neighbours are of different applications.
    waiting: Vec<Named>,
    /// When the first of them is due, UTC ms.
    first_due: u64,
}

impl Face {
    /// Two nodes, and the items an hour ahead, in their stores. `None` as for [`Nodes::stopped`].
    fn start(name: &str) -> Option<Face> {
        Some(Face::of(Nodes::start(name, 2)?))
    }

    /// The same with these two nodes, which may still be starting.
    fn of(mut nodes: Nodes) -> Face {
        let claims = nodes.even();
        let inboxes = consumed(&nodes.site);
        let first_due = now_ms() + HOUR;
        let names = inboxes.iter().map(|(name, _)| name).cycle();
        let waiting: Vec<Named> =
            (0..ITEMS).zip(names).map(|(n, name)| (name.clone(), format!("i{n:03}"))).collect();
        let push = |(n, (name, id)): (u64, &Named)| {
            let due = i64::try_from(first_due + n * STEP).expect("a date");
            let push = nodes.site.push(name, "1").id(id).number("x-deliver-at", due);
            // Five of each customer.
            push.customer(&format!("c{}", n / 8 % 4))
        };
        nodes.site.client.publish_all((0..).zip(&waiting).map(push));
        nodes.able.iter().for_each(|node| node.holds("waiting", ITEMS));
        stored(&nodes.site);
        Face { nodes, claims, inboxes, waiting, first_due }
    }

    /// The nodes, while both run.
    fn both(&self) -> [&Daemon; 2] {
        [0, 1].map(|place| &self.nodes.able[place])
    }

    /// The node that has an application's shard, and the other one.
    fn owner_and_other(&self, application: &str) -> (&Daemon, &Daemon) {
        let place = self.nodes.place_of(application, &self.claims);
        (&self.nodes.able[place], &self.nodes.able[1 - place])
    }

    /// The first ids of an application, in the order of due.
    fn ids<const N: usize>(&self, application: &str) -> [&str; N] {
        let of = self.waiting.iter().filter(|(name, _)| name == application);
        let ids: Vec<&str> = of.map(|(_, id)| id.as_str()).take(N).collect();
        ids.try_into().expect("as many items")
    }

    /// When an item was due at first.
    fn due(&self, id: &str) -> u64 {
        self.first_due + STEP * id[1..].parse::<u64>().expect("a number")
    }

    /// The answer of both nodes to this request, which changes nothing. If one is too late, both are asked again.
    fn same(&self, path: &str) -> (u16, Value) {
        let mut answers = [(0, Value::Null), (0, Value::Null)];
        wait_until(&format!("both answer about {path}"), LIMIT, || {
            answers = self.both().map(|node| node.ask("GET", path));
            answers.iter().all(|(status, _)| *status != 503)
        });
        let [one, other] = answers;
        assert_eq!(one, other, "{path}");
        one
    }

    /// The list of both nodes.
    fn same_list(&self, filter: &str) -> Vec<Value> {
        let [one, other] = self.both().map(|node| whole_list(node, filter));
        assert_eq!(one, other, "{filter}");
        one
    }
}

/// All rows of a node's list, once it leaves out no shard.
fn whole_list(node: &Daemon, filter: &str) -> Vec<Value> {
    let mut rows = Vec::new();
    wait_until(&format!("a list of all shards, {filter}"), LIMIT, || match walk(&[node], filter) {
        Ok(told) => {
            rows = told.rows;
            told.missing.is_empty()
        }
        Err((status, said)) => {
            is_refused(status, &said);
            false
        }
    });
    rows
}

fn item(application: &str, id: &str) -> String {
    format!("/api/v1/items/{application}/{id}")
}

/// The items of these rows.
fn named(rows: &[Value]) -> Vec<Named> {
    let text = |row: &Value, key: &str| row[key].as_str().unwrap_or_else(|| panic!("{row}")).to_owned();
    rows.iter().map(|row| (text(row, "application"), text(row, "id"))).collect()
}

fn dues(rows: &[Value]) -> Vec<u64> {
    rows.iter().map(|row| row["due"].as_u64().unwrap_or_else(|| panic!("{row}"))).collect()
}

/// A number of each application that a document names, sorted.
fn numbers(document: &Value, key: &str) -> Vec<(String, u64)> {
    let rows = document["applications"].as_array().unwrap_or_else(|| panic!("{document}"));
    let number = |row: &Value| Some((row["name"].as_str()?.to_owned(), row[key].as_u64()?));
    let mut numbers: Vec<_> = rows.iter().map(|row| number(row).unwrap_or_else(|| panic!("{row}"))).collect();
    numbers.sort();
    numbers
}

fn counted(timeline: &Value) -> u64 {
    let counts = timeline["counts"].as_array().unwrap_or_else(|| panic!("{timeline}"));
    assert_eq!(timeline["counted_until"], Value::Null, "{timeline}");
    counts.iter().map(|count| count.as_u64().expect("a count")).sum()
}

fn cancelled(count: u64) -> (u16, Value) {
    (200, json!({ "result": "cancelled", "count": count }))
}

#[test]
fn both_nodes_give_the_same_list_timeline_and_state_of_all_shards() {
    let Some(face) = Face::start("face-lists") else { return };
    let [one, other] = face.both();
    let rows = face.same_list("limit=7");
    assert_eq!(named(&rows), face.waiting, "in the order of due, each once");
    assert_eq!(dues(&rows), (0..ITEMS).map(|n| face.first_due + n * STEP).collect::<Vec<_>>());
    assert_eq!(listed(&[one, other], "limit=7"), rows, "each node goes on where the other one has ended");
    assert_eq!(face.same_list("limit=1000"), rows);
    let totals: Vec<(String, u64)> =
        face.inboxes.iter().map(|(name, _)| (name.clone(), OF_APPLICATION)).collect();
    for (name, _) in &totals {
        let own: Vec<Value> = rows.iter().filter(|row| row["application"] == **name).cloned().collect();
        assert_eq!(own.len() as u64, OF_APPLICATION, "{name}");
        assert_eq!(face.same_list(&format!("application={name}&limit=7")), own);
        let path = format!("/api/v1/applications/{name}/items?all=true");
        assert_eq!(face.same(&path).1["waiting"], OF_APPLICATION, "{path}");
    }
    let sorted = {
        let mut totals = totals.clone();
        totals.sort();
        totals
    };
    let mut told = [Value::Null, Value::Null];
    wait_until("both count from the same moment", LIMIT, || {
        told = face.both().map(|node| whole(node, "/api/v1/timeline?span=day"));
        told[0]["from"] == told[1]["from"]
    });
    assert_eq!(told[0]["counts"], told[1]["counts"], "{told:?}");
    for told in &told {
        let numbers = (numbers(told, "count"), missing(told), counted(told));
        assert_eq!(numbers, (sorted.clone(), BTreeSet::new(), ITEMS), "{told}");
    }
    for node in face.both() {
        let [state, all] = ["/api/v1/state", "/api/v1/applications"].map(|path| whole(node, path));
        assert_eq!(
            (&state["items"]["waiting"], missing(&state)),
            (&json!(ITEMS), BTreeSet::new()),
            "{state}"
        );
        assert_eq!((numbers(&state, "total"), numbers(&all, "total")), (sorted.clone(), sorted.clone()));
    }
    for (name, _) in &totals {
        let (status, told) = face.same(&format!("/api/v1/applications/{name}"));
        assert_eq!((status, &told["total"]), (200, &json!(OF_APPLICATION)), "{told}");
        for node in face.both() {
            let told = whole(node, &format!("/api/v1/timeline?span=day&application={name}"));
            assert_eq!(counted(&told), OF_APPLICATION, "{told}");
        }
    }
}

#[test]
fn each_node_finds_moves_and_cancels_items_of_the_other() {
    let Some(face) = Face::start("face-items") else { return };
    let site = &face.nodes.site;
    let asker = Asker::new(site);
    for (name, _) in &face.inboxes {
        let (owner, other) = face.owner_and_other(name);
        let [moved, gone, by_command, by_message] = face.ids(name);
        let path = |id| item(name, id);
        let state = |id| face.same(&path(id)).1["state"].clone();
        let (status, told) = face.same(&path(moved));
        let due = face.due(moved);
        assert_eq!((status, &told["state"], &told["due"]), (200, &json!("waiting"), &json!(due)), "{told}");
        let later = due + HOUR;
        let answer = other.ask("POST", &format!("{}/reschedule?at={later}", path(moved)));
        assert_eq!(answer, (200, json!({ "result": "rescheduled", "due": later, "before": due })));
        let (status, told) = face.same(&path(moved));
        assert_eq!((status, &told["state"], &told["due"]), (200, &json!("waiting"), &json!(later)), "{told}");
        assert_eq!(other.ask("DELETE", &path(gone)), cancelled(1));
        assert_eq!(state(gone), "cancelled");

        let told = other.cli(&["lookup", name, by_command, "--output", "json"]);
        assert_eq!((told.code, told.json()), owner_says(owner, &path(by_command)), "{told:?}");
        let told = other.cli(&["cancel", name, by_command]);
        assert_eq!((told.code, told.out.as_str(), told.err.as_str()), (0, "cancelled: 1 item\n", ""));
        assert_eq!(state(by_command), "cancelled");
        assert_eq!(owner.cli(&["cancel", name, by_command]).code, 0, "it is known as cancelled");

        let about = || site.push(name, "").id(by_message);
        assert_eq!(asker.ask("lookup", about())["state"], "waiting");
        assert_eq!(asker.ask("cancel", about()), cancelled(1).1);
        assert_eq!(state(by_message), "cancelled");

        assert_eq!(face.same(&path("nobody")).0, 404);
        for (method, path) in [("DELETE", path("nobody")), ("POST", path("nobody") + "/reschedule?delay=1")] {
            assert_eq!(other.ask(method, &path), (404, json!({ "result": "unknown" })), "{method} {path}");
        }
        // What is no request is refused, and so is what the engine of the other node refuses.
        assert_eq!(other.ask("POST", &format!("{}/reschedule?at=soon", path(moved))).0, 400);
        let (status, told) = other.ask("POST", &format!("{}/reschedule?delay=99999999999999", path(moved)));
        assert!([400, 409].contains(&status) && told["error"].is_string(), "{status} {told}");
    }
    let left: Vec<Named> = {
        let is_moved = |(name, id): &&Named| face.ids::<1>(name) == [id.as_str()];
        let is_left = |(name, id): &&Named| !face.ids::<4>(name).contains(&id.as_str());
        // Those with another time are due behind the others.
        face.waiting.iter().filter(is_left).chain(face.waiting.iter().filter(is_moved)).cloned().collect()
    };
    assert_eq!(named(&face.same_list("limit=50")), left);
    face.nodes.able.iter().for_each(|node| node.holds("waiting", ITEMS - 3 * 8));
    nothing_more(&face.inboxes);
}

/// The exit code and the document that a look-up by the command line is to have.
fn owner_says(owner: &Daemon, path: &str) -> (i32, Value) {
    let (status, told) = owner.ask("GET", path);
    assert_eq!(status, 200, "{told}");
    (0, told)
}

#[test]
fn what_is_done_to_a_customer_or_an_application_at_one_node_holds_at_both() {
    let Some(face) = Face::start("face-groups") else { return };
    for pair in face.inboxes.chunks(2) {
        // Both are of one shard.
        let [(paused, held), (free, passes)] = pair else { panic!("two in each shard") };
        assert_eq!(home(paused), home(free));
        let (owner, other) = face.owner_and_other(paused);
        for name in [paused, free] {
            let customer = format!("/api/v1/customers/{name}/c1");
            let (status, told) = face.same(&customer);
            assert_eq!((status, &told["waiting"]), (200, &json!(5)), "{told}");
            assert_eq!(other.ask("DELETE", &format!("{customer}/items")), cancelled(5));
            assert_eq!(face.same(&customer).1["waiting"], 0, "{customer}");
            assert_eq!(face.same_list(&format!("application={name}&customer=c1")), [] as [Value; 0]);
        }
        let application = format!("/api/v1/applications/{paused}");
        let change = |node: &Daemon, verb: &str| node.ask("POST", &format!("{application}/{verb}"));
        let changed = |changed: bool| (200, json!({ "result": "done", "changed": changed }));
        assert_eq!(change(other, "pause"), changed(true));
        assert_eq!(change(owner, "pause"), changed(false), "the owner knows of it");
        assert_eq!(face.same(&application).1["paused"], true);
        // Both are due now, and the one that is not paused leaves.
        let at_once = |name: &str| {
            let [id] = face.ids(name);
            let answer = other.ask("POST", &format!("{}/reschedule?delay=0", item(name, id)));
            assert_eq!((answer.0, &answer.1["result"]), (200, &json!("rescheduled")), "{answer:?}");
            id
        };
        let (id, passed) = (at_once(paused), at_once(free));
        assert_eq!(passes.batch().ids(), [passed]);
        nothing_more(pair);
        let by_command = other.cli(&["resume", paused]);
        assert_eq!(by_command.code, 0, "{by_command:?}");
        assert_eq!(held.batch().ids(), [id]);
        assert_eq!(change(owner, "resume"), changed(false), "the owner knows of it");
        for node in face.both() {
            assert_eq!(node.ask("GET", &application).1["paused"], false);
        }
        for (name, id) in [(paused, id), (free, passed)] {
            wait_until("both know that it was sent", LIMIT, || {
                face.both().iter().all(|node| node.ask("GET", &item(name, id)).1["state"] == "sent")
            });
        }
    }
    nothing_more(&face.inboxes);
    face.nodes.able.iter().for_each(|node| node.holds("waiting", ITEMS - (5 + 1) * 8));
}

#[test]
fn the_status_of_each_node_names_all_owners_and_its_metrics_count_its_own_items() {
    let Some(face) = Face::start("face-status") else { return };
    for node in face.both() {
        let mut told = node.cli(&["status"]);
        // A node that is busy is left out for a moment.
        wait_until("all items are counted", LIMIT, || {
            told = node.cli(&["status"]);
            told.out.contains(&format!("{ITEMS} waiting"))
        });
        let of_shards: Vec<&str> = told.out.lines().filter(|line| line.starts_with("shard ")).collect();
        assert_eq!((told.code, of_shards.len()), (0, usize::from(COUNT)), "{told:?}");
        for (shard, (line, claim)) in of_shards.iter().zip(&face.claims).enumerate() {
            assert!(line.starts_with(&format!("shard {shard} ")), "{line}");
            assert!(line.contains(&format!("owner {} ", claim.owner)), "{claim:?}: {line}");
        }
    }
    let own = face.both().map(|node| {
        let page = node.ask_whole("GET", "/metrics").expect("an answer").body;
        let sample = "tidegate_items{state=\"waiting\"} ";
        let count = page.lines().find_map(|line| line.strip_prefix(sample)?.parse::<f64>().ok());
        count.unwrap_or_else(|| panic!("no {sample} in {page}"))
    });
    assert_eq!(own, [(2 * OF_SHARD) as f64; 2]);
}

/// What was asked while the shards of a node had no owner.
struct Gap<'f> {
    face: &'f Face,
    /// Shards of the node that was killed.
    lost: &'f BTreeSet<u16>,
    /// The node that is asked.
    left: &'f Daemon,
}

impl Gap<'_> {
    /// Panics unless the list has each item of the shards that it does not name, in order and once.
    fn list_is_honest(&self, Walk { rows, missing, pages }: &Walk) {
        assert!(missing.is_subset(self.lost), "{missing:?}");
        let rows = named(rows);
        let is_told = |(name, _): &&Named| !missing.contains(&home(name));
        let of = |items: &[Named]| items.iter().filter(is_told).cloned().collect::<Vec<_>>();
        assert_eq!(of(&rows), of(&self.face.waiting), "{pages:?}");
        // Of a shard that one page has left out, another page may have rows.
        let each: BTreeSet<&Named> = rows.iter().collect();
        assert_eq!(each.len(), rows.len(), "each once");
        assert!(rows.iter().all(|row| self.face.waiting.contains(row)), "{rows:?}");
    }

    /// Asks for the list. Returns which shards it has left out; `None`: it was refused.
    fn list(&self, filter: &str) -> Option<BTreeSet<u16>> {
        match walk(&[self.left], filter) {
            Ok(told) => {
                self.list_is_honest(&told);
                Some(told.missing)
            }
            Err((status, said)) => {
                is_refused(status, &said);
                None
            }
        }
    }

    /// Asks for a document that counts items. Returns which shards it has left out; `None`: it was refused.
    fn counts(&self, path: &str, count: impl FnOnce(&Value) -> u64) -> Option<BTreeSet<u16>> {
        let (status, told) = self.left.ask("GET", path);
        if status != 200 {
            is_refused(status, &told);
            return None;
        }
        let missing = missing(&told);
        assert!(missing.is_subset(self.lost), "{path}: {told}");
        let there = u64::from(COUNT) - missing.len() as u64;
        assert_eq!(count(&told), there * OF_SHARD, "{path}: {told}");
        Some(missing)
    }

    /// Asks for this application. It has items, so it is not unknown.
    fn knows(&self, application: &str) {
        let (status, told) = self.left.ask("GET", &format!("/api/v1/applications/{application}"));
        if status == 200 {
            assert_eq!(told["total"], OF_APPLICATION, "{told}");
        } else {
            is_refused(status, &told);
        }
    }

    /// Asks for an item of this application. Returns whether the answer is a sentence that names its shard.
    fn names_shard_of(&self, application: &str) -> bool {
        let [id] = self.face.ids(application);
        let (status, told) = self.left.ask("GET", &item(application, id));
        if status == 200 {
            assert_eq!(told["state"], "waiting", "{told}");
            return false;
        }
        is_refused(status, &told);
        let words = told["error"].as_str().unwrap_or_default().replace(|c: char| !c.is_alphanumeric(), " ");
        format!(" {words} ").contains(&format!(" shard {} ", home(application)))
    }
}

/// Panics unless this is a refusal that a client may try again, with a sentence.
fn is_refused(status: u16, said: &Value) {
    let is_sentence = said["error"].as_str().is_some_and(|error| error.contains(' '));
    assert!(status == 503 && is_sentence, "{status} {said}");
}

#[test]
fn nothing_is_left_out_in_silence_while_the_shards_of_a_killed_node_have_no_owner() {
    let Some(mut face) = Face::start("face-gap") else { return };
    let mut dead = face.nodes.able.remove(0);
    let left_name = face.nodes.able[0].state()["node"].as_str().expect("its name").to_owned();
    let lost: BTreeSet<u16> = (0..)
        .zip(&face.claims)
        .filter(|(_, claim)| claim.owner != left_name)
        .map(|(shard, _)| shard)
        .collect();
    assert_eq!(lost.len(), 2, "{:?}", face.claims);
    let owner = lost.first().map(|shard| face.claims[usize::from(*shard)].owner.clone()).expect("two");
    dead.kill9();
    // A question that comes into its queue before the broker deletes that is waited for until another node
    // has the shard, and by then nothing is missing any more.
    let question = Push::new(&face.nodes.site.control_exchange(), &owner, "{}");
    wait_until("its queue is gone", LIMIT, || face.nodes.site.client.publish(&question) == Verdict::Returned);
    let gap = Gap { face: &face, lost: &lost, left: &face.nodes.able[0] };
    let [of_lost, of_left] = [true, false].map(|is_lost| {
        let mut names = face.inboxes.iter().map(|(name, _)| name.as_str());
        names.find(|name| lost.contains(&home(name)) == is_lost).expect("an application")
    });
    // How often the list, the timeline, the state and a sentence have named what no node had.
    let mut told = [0; 4];
    wait_until("the other node has all shards", LIMIT, || {
        let waiting = |state: &Value| state["items"]["waiting"].as_u64().expect("a count");
        let is_named = |missing: &Option<BTreeSet<u16>>| missing.as_ref() == Some(&lost);
        let list = gap.list("limit=1000");
        let sentence = gap.names_shard_of(of_lost);
        let timeline = gap.counts("/api/v1/timeline?span=day", counted);
        let state = gap.counts("/api/v1/state", waiting);
        let totals = |told: &Value| numbers(told, "total").iter().map(|(_, total)| total).sum();
        let applications = gap.counts("/api/v1/applications", totals);
        gap.knows(of_lost);
        let pages = gap.list("limit=60");
        let named = [is_named(&list), is_named(&timeline), is_named(&state), sentence];
        told.iter_mut().zip(named).for_each(|(told, named)| *told += u32::from(named));
        let [id] = face.ids(of_left);
        let (status, found) = gap.left.ask("GET", &item(of_left, id));
        assert_eq!((status, &found["state"]), (200, &json!("waiting")), "it has not moved: {found}");
        let recorded = face.nodes.recorded();
        let is_settled =
            recorded.len() == usize::from(COUNT) && recorded.iter().all(|claim| claim.owner == left_name);
        let is_whole = |missing: &Option<BTreeSet<u16>>| missing.as_ref().is_some_and(BTreeSet::is_empty);
        is_settled && [list, pages, timeline, state, applications].iter().all(is_whole)
    });
    assert!(told.iter().all(|times| *times > 0), "the list, timeline, state and a look-up: {told:?}");
    assert_eq!(named(&whole_list(gap.left, "limit=7")), face.waiting);
    assert!(!gap.names_shard_of(of_lost));
    face.nodes.able[0].holds("waiting", ITEMS);
    face.nodes.even();
}

#[test]
fn the_node_that_is_asked_wants_its_own_token_and_records_who_asked() {
    const TOKENS: [&str; 2] = ["a-token-of-the-one-node", "a-token-of-the-other-node"];
    let Some(mut nodes) = Nodes::stopped("face-tokens") else { return };
    for token in TOKENS {
        let file = nodes.site.dir.join(format!("secret-{}", nodes.able.len()));
        fs::write(&file, token).expect("the token");
        let mut node = started(&nodes.config.clone().text("admin.token_file", &file.to_string_lossy()));
        node.present(token);
        nodes.able.push(node);
    }
    let face = Face::of(nodes);
    for (place, asked) in face.both().into_iter().enumerate() {
        let is_far = |name: &&String| face.nodes.place_of(name, &face.claims) != place;
        let name = face.inboxes.iter().map(|(name, _)| name).find(is_far).expect("one of the other node");
        let (owner, _) = face.owner_and_other(name);
        let [id] = face.ids(name);
        let path = item(name, id);
        for token in [None, Some(TOKENS[1 - place]), Some("another")] {
            for (method, path) in [
                ("GET", path.as_str()),
                ("DELETE", path.as_str()),
                ("GET", "/api/v1/items"),
                ("GET", "/api/v1/state"),
                ("POST", format!("/api/v1/applications/{name}/pause").as_str()),
            ] {
                assert_eq!(asked.ask_with(token, method, path).0, 401, "{token:?} {method} {path}");
            }
        }
        assert_eq!(face.same(&path).1["state"], "waiting");
        assert_eq!(face.same(&format!("/api/v1/applications/{name}")).1["paused"], false);
        assert_eq!(asked.ask("DELETE", &path), cancelled(1));
        let of = |node: &Daemon| {
            let lines = audit::lines(node, "admin action");
            lines.into_iter().filter(|line| line.contains(&format!("id={id:?}"))).collect::<Vec<_>>()
        };
        wait_until("the line", LIMIT, || of(asked).len() == 1);
        let line = of(asked).concat();
        let about = format!("action=\"cancel\" application={name:?} id={id:?}");
        let ended = "result=\"cancelled\" count=1";
        for part in [about.as_str(), "peer=127.0.0.1:", "token=\"full\"", "status=200", ended] {
            assert!(line.contains(part), "{part}: {line}");
        }
        assert_eq!(face.same(&path).1["state"], "cancelled");
        assert_eq!(of(owner), [""; 0]);
    }
    for node in face.both() {
        assert_eq!(audit::lines(node, "admin action").len(), 1, "{}", node.log_tail());
        assert!(TOKENS.iter().all(|token| !node.log().contains(token)), "{}", node.log_tail());
    }
    assert_eq!(face.same_list("limit=1000").len() as u64, ITEMS - 2);
}

/// Bodies that no node has made. `genuine` is the request of a node to cancel the item `done`; what they would
/// do is to cancel `other`.
fn made_up(genuine: &[u8], done: &str, other: &str) -> Vec<Vec<u8>> {
    let text = String::from_utf8_lossy(genuine).replace(done, other).into_bytes();
    let flipped = (0..5).map(|part| {
        let mut body = genuine.to_vec();
        let place = (body.len() - 1) * part / 4;
        body[place] ^= 1;
        body
    });
    let mut bodies = vec![
        Vec::new(),
        b"{}".to_vec(),
        b"null".to_vec(),
        json!({ "Cancel": { "application": "app-0", "id": other } }).to_string().into_bytes(),
        "[".repeat(100_000).into_bytes(),
        vec![0xff; 2 * 1024 * 1024],
        genuine[..genuine.len() / 2].to_vec(),
        [genuine, b" "].concat(),
        text,
    ];
    bodies.extend(flipped);
    // It was received before.
    bodies.push(genuine.to_vec());
    bodies
}

#[test]
fn what_no_node_has_asked_is_ignored_by_a_node() {
    let Some(mut face) = Face::start("face-forged") else { return };
    let (site, control) = (&face.nodes.site, face.nodes.site.control_exchange());
    let replies = site.client.consume_direct_replies();
    for (name, _) in face.inboxes.iter().step_by(2) {
        let (_, asked) = face.owner_and_other(name);
        let owner = &face.claims[usize::from(home(name))].owner;
        let [done, other] = face.ids(name);
        // A copy of what the owner of the shard is asked.
        let copies = site.queue(&format!("copies-{name}"));
        site.client.queue(&copies, FieldTable::default());
        site.client.bind(&copies, &control, owner);
        let copied = site.client.consume(&copies);
        assert_eq!(asked.ask("DELETE", &item(name, done)), cancelled(1));
        let genuine = copied.next();
        site.client.delete_queue(&copies);
        assert_eq!((genuine.exchange.as_str(), genuine.key.as_str()), (control.as_str(), owner.as_str()));
        for body in made_up(&genuine.body, done, other) {
            let mut push = Push::new(&control, owner, body);
            push.properties = push
                .properties
                .with_reply_to(Client::DIRECT_REPLY_TO.into())
                .with_correlation_id("made-up".into())
                .with_expiration("20000".into());
            assert_eq!(site.client.publish(&push), Verdict::Taken, "the queue of {owner} has its name");
        }
        // It is asked after them, in the same queue.
        assert_eq!(asked.ask("GET", &item(name, other)).1["state"], "waiting");
        assert_eq!(face.same(&item(name, done)).1["state"], "cancelled");
    }
    replies.quiet(std::time::Duration::from_millis(50));
    let nobody = Push::new(&control, "nobody/0", "{}");
    assert_eq!(site.client.publish(&nobody), Verdict::Returned, "no node has this name");
    assert_eq!(face.same_list("limit=1000").len() as u64, ITEMS - u64::from(COUNT));
    for node in face.both() {
        assert_eq!(whole(node, "/api/v1/state")["totals"]["cancelled"], COUNT);
    }
    assert_eq!(face.nodes.even(), face.claims, "no node has ended or given up a shard");
}
