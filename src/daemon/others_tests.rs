//! Tests of what nodes ask each other, without a broker: a question is handed over in memory.

use super::*;
use crate::admin::{ItemOf, Status};
use serde_json::{json, Value};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Mutex;
use tidegate_types::{
    Answer, Asker, Command, CustomerOf, Filter, Moment, Rate, Reply, Selection, TimelineQuery,
};
use tokio::runtime::Runtime;

fn key(n: u8) -> ForwardKey {
    ForwardKey::new([n; 32])
}

/// Two nodes with two shards: the first asks, and the second has shard 1.
struct Site {
    runtime: Runtime,
    asking: OtherNodes,
    /// By node: how it answers.
    nodes: Arc<Mutex<BTreeMap<String, Serve>>>,
    /// The shard of the second node.
    inlet: Arc<Inlet>,
    owns: Arc<SeatBoard>,
    board: Arc<SeatBoard>,
}

fn site(own: ForwardKey, other: ForwardKey) -> Site {
    let runtime = super::super::lasting::one_worker("nodes", &tracing::Span::none()).unwrap();
    let (board, owns) = (Arc::new(SeatBoard::new(2)), Arc::new(SeatBoard::new(2)));
    board.set_held(0, true);
    board.set_owner(1, Some("b"));
    owns.set_held(1, true);
    ["b", "c"].iter().for_each(|name| owns.named(name));
    let inlet = Arc::new(Inlet::default());
    let serves = serve(other, Arc::clone(&owns), vec![Arc::default(), Arc::clone(&inlet)]);
    let nodes: Arc<Mutex<BTreeMap<String, Serve>>> = Arc::default();
    nodes.lock().unwrap().insert("b".to_owned(), serves);
    let asking = OtherNodes::new(Arc::clone(&board));
    let known = Arc::clone(&nodes);
    asking.connect(
        own,
        Box::new(move |node, question, limit| {
            let serve = known.lock().unwrap().get(&node).cloned();
            async move {
                let Some(serve) = serve else { return Err(AskFailure::NoNode) };
                let answer = timeout(limit, serve(question)).await;
                answer.ok().flatten().ok_or(AskFailure::Unanswered)
            }
            .boxed()
        }),
    );
    Site { runtime, asking, nodes, inlet, owns, board }
}

impl Site {
    /// Asks for a command, which the shard, if it is given it, answers so.
    fn part(&self, request: CommandRequest, answer: Answer) -> ShardPart {
        let inlet = Arc::clone(&self.inlet);
        let wanted = request.clone();
        let shard = std::thread::spawn(move || {
            let mut events = VecDeque::new();
            inlet.take(Duration::from_secs(60), &mut events);
            let event = events.pop_front();
            let Some(LoopEvent::Command(given, reply)) = event else { return false };
            assert_eq!(given, wanted);
            let reply_of = Box::new(Reply { asker: Asker::Local(1), command: None, answer });
            reply
                .send(super::super::answers::ShardAnswer::Carried { reply: reply_of, store_identity: 5 })
                .unwrap();
            true
        });
        let part = self.runtime.block_on(self.asking.part(1, request));
        // Ends the wait of a shard that was given nothing.
        self.inlet.post(ControlEvent::Order(super::super::mailbox::ShardOrder::Serve));
        shard.join().unwrap();
        self.inlet.take(Duration::ZERO, &mut VecDeque::new());
        part
    }
}

fn reason(part: ShardPart) -> String {
    let ShardPart::Whole { status: Status::Unavailable, document } = part else { panic!("{part:?}") };
    document["error"].as_str().unwrap().to_owned()
}

#[test]
fn every_command_reaches_the_node_that_has_the_shard_as_it_is() {
    let site = site(key(1), key(1));
    let app = || Box::<str>::from("größe \u{0}");
    let item = || ItemOf { application: app(), id: "\"1\"".into() };
    let of = || CustomerOf { application: app(), customer: "ann".into() };
    let selection = Selection { due_from: 3, customer: Some("c".into()), ..Selection::all(app()) };
    let filter = Filter {
        application: Some("mail".into()),
        from: tidegate_types::Key { due: 1, window: 2, seq: u64::MAX },
        state: Some(tidegate_types::ListedStage::Parked),
        limit: 7,
        ..Filter::default()
    };
    let commands: Vec<CommandRequest> = vec![
        Command::Cancel(item()),
        Command::Lookup(item()),
        Command::Reschedule(item(), Moment::At(u64::MAX)),
        Command::CancelAll(of()),
        Command::Count(of()),
        Command::Flush(of()),
        Command::PauseCustomer(of(), Some(Moment::After(5))),
        Command::ResumeCustomer(of()),
        Command::CancelSelected(selection.clone()),
        Command::CountSelected(selection),
        Command::FlushAll(app()),
        Command::Pause(app(), None),
        Command::Resume(app()),
        Command::Slow(app(), Rate::new(5, 60_000), None),
        Command::Retry(app()),
        Command::DropParked(app()),
        Command::List(filter),
        Command::TimelineQuery(TimelineQuery {
            application: None,
            at: Some(9),
            each_ms: 60_000,
            stretches: 3,
        }),
    ];
    for command in commands {
        let part = site.part(command, Answer::Cancelled { count: 2, in_flight: 0 });
        let document = json!({ "result": "cancelled", "count": 2 });
        assert_eq!(part, ShardPart::Whole { status: Status::Known, document });
    }
}

#[test]
fn a_shard_that_no_node_has_is_missing_and_its_next_owner_is_asked_once() {
    let site = site(key(1), key(1));
    let resume = || Command::Resume("shop".into());
    let missing = |owner: Option<&str>| ShardPart::Missing { shard: 1, owner: owner.map(str::to_owned) };
    site.owns.set_held(1, false);
    assert_eq!(site.part(resume(), Answer::Unknown), missing(None), "it has moved");
    site.owns.set_held(1, true);
    let serves = site.nodes.lock().unwrap().remove("b").unwrap();
    assert_eq!(site.part(resume(), Answer::Unknown), missing(Some("b")), "its lease still runs");
    site.nodes.lock().unwrap().insert("c".to_owned(), serves);
    site.board.set_owner(1, Some("c"));
    let part = site.part(resume(), Answer::Done { changed: true });
    assert_eq!(
        part,
        ShardPart::Whole { status: Status::Known, document: json!({ "result": "done", "changed": true }) }
    );
    site.board.set_owner(1, None);
    assert_eq!(site.part(resume(), Answer::Unknown), missing(None));
    let told = |owner| {
        let told = missing(owner).response();
        assert_eq!(told.status, Status::Unavailable);
        told.document["error"].as_str().unwrap().to_owned()
    };
    let home = "shard 1, the home of this application, belongs to";
    assert_eq!(told(None), format!("{home} no node at present"));
    let unbound = format!("{home} node b, which has no queue at the control exchange: nothing was done");
    assert_eq!(told(Some("b")), unbound);
}

/// Excluded: a state that comes too late for its client, since the questions to a silent node wait for each
/// other.
#[test]
fn a_silent_node_with_many_shards_is_given_up_for_all_of_them_at_once() {
    let runtime = super::super::lasting::one_worker("nodes", &tracing::Span::none()).unwrap();
    let count = 3 * MOST_ASKED_OF_ONE as u16;
    let board = Arc::new(SeatBoard::new(count));
    (0..count).for_each(|shard| board.set_owner(shard, Some("b")));
    let asking = OtherNodes::new(board);
    asking.connect(
        key(1),
        Box::new(|_: String, _: Vec<u8>, limit: Duration| {
            async move {
                tokio::time::sleep(limit).await;
                Err::<Vec<u8>, _>(AskFailure::Unanswered)
            }
            .boxed()
        }),
    );
    let took = || {
        let begun = std::time::Instant::now();
        let told = futures_util::future::join_all((0..count).map(|shard| asking.state(shard)));
        assert!(runtime.block_on(told).iter().all(Option::is_none));
        begun.elapsed()
    };
    // Questions that wait for each other take twice as long, in every round.
    assert!((0..5).any(|_| took() < STATE_WITHIN * 3 / 2));
}

/// Excluded: a wait of half a minute for a node that was killed, and a change that is asked for twice.
#[test]
fn a_question_to_a_node_that_has_lost_the_shard_ends_and_a_look_goes_on_to_the_next_one() {
    let site = site(key(1), key(1));
    let board = Arc::clone(&site.board);
    // It loses the shard when it is asked, and says nothing.
    let silent: Serve = Arc::new(move |_| {
        board.set_owner(1, Some("b"));
        std::future::pending().boxed()
    });
    site.nodes.lock().unwrap().insert("c".to_owned(), silent);
    site.board.set_owner(1, Some("c"));
    let count = Command::Count(CustomerOf { application: "a".into(), customer: "c".into() });
    let part = site.part(count, Answer::Flushed(3));
    let document = json!({ "result": "flushed", "count": 3 });
    assert_eq!(part, ShardPart::Whole { status: Status::Known, document });
    site.board.set_owner(1, Some("c"));
    let told = reason(site.part(Command::Resume("shop".into()), Answer::Unknown));
    assert_eq!(told, "shard 1 belongs to node c, which has gone meanwhile: a change may have been made");
}

#[test]
fn what_does_not_prove_itself_is_neither_carried_out_nor_believed() {
    let site = site(key(1), key(2));
    let part = site.part(Command::Resume("shop".into()), Answer::Done { changed: true });
    assert_eq!(
        reason(part),
        "shard 1 belongs to node b, which did not answer in time: a change may have been made"
    );
    let question = sealed(&key(2), QUESTION, b"a question");
    assert_eq!(opened(&key(2), QUESTION, &question), Some(&b"a question"[..]));
    assert_eq!(opened(&key(2), &answer_to(&question), &question), None, "a question is no answer");
    assert_eq!(opened(&key(2), QUESTION, &question[..20]), None);
    let mut changed = question.clone();
    *changed.last_mut().unwrap() ^= 1;
    assert_eq!(opened(&key(2), QUESTION, &changed), None);
    let other = sealed(&key(2), QUESTION, b"another question");
    let answer = sealed(&key(2), &answer_to(&question), b"yes");
    assert_eq!(opened(&key(2), &answer_to(&question), &answer), Some(&b"yes"[..]));
    assert_eq!(opened(&key(2), &answer_to(&other), &answer), None, "it answers another question");
}

/// Excluded: a change that was recorded and sends again: to its node, another one or a later process.
#[test]
fn a_change_is_received_once_by_the_process_that_it_is_for_and_in_time() {
    let site = site(key(1), key(1));
    let now = clock::wall_ms();
    let serve = || site.nodes.lock().unwrap()["b"].clone();
    let ask = |node: &str, process: u64, number: u64, until: u64| {
        let about = QuestionAbout::Command(Box::new(Command::Resume("shop".into())));
        let question = NodeQuestion { node: node.to_owned(), process, number, until, shard: 0, about };
        let question = sealed(&key(1), QUESTION, &serde_json::to_vec(&question).unwrap());
        let answer = site.runtime.block_on(serve()(question.clone()))?;
        let json = opened(&key(1), &answer_to(&question), &answer).unwrap();
        Some(serde_json::from_slice::<NodeAnswer>(json).unwrap())
    };
    let Some(NodeAnswer::Anew(own)) = ask("b", 0, 1, now + 60_000) else { panic!("it tells its process") };
    assert!(matches!(ask("b", own ^ 1, 1, now + 60_000), Some(NodeAnswer::Anew(again)) if again == own));
    let is_heard = |node: &str, number, until| match ask(node, own, number, until) {
        Some(NodeAnswer::Elsewhere) => true,
        None => false,
        told => panic!("{told:?}"),
    };
    assert!(is_heard("b", 1, now + 60_000), "it does not have the shard, and says so");
    assert!(!is_heard("b", 1, now + 60_000), "again");
    assert!(is_heard("b", 2, now + 60_000));
    assert!(!is_heard("a", 3, now + 60_000), "it is for another node");
    assert!(!is_heard("b", 4, now - 1), "it comes late");
    assert!(!is_heard("b", 5, now + FARTHEST_MS + 60_000), "it would have to be remembered for too long");
    let unknown = sealed(&key(1), QUESTION, br#"{"node":"b","more":1}"#);
    let told = site.runtime.block_on(serve()(unknown.clone())).unwrap();
    let told: NodeAnswer =
        serde_json::from_slice(opened(&key(1), &answer_to(&unknown), &told).unwrap()).unwrap();
    let NodeAnswer::Part(told) = told else { panic!("{told:?}") };
    assert_eq!(reason(told), "the node that has the shard is of another version: nothing was done");
    let mut received = ReceivedChanges::default();
    assert!((0..MOST_RECEIVED as u64).all(|number| received.has_room(5) && received.admits(number, 10)));
    assert!(!received.has_room(10) && received.has_room(11), "there is room again");
}

#[test]
fn a_page_and_a_timeline_are_the_same_after_the_way() {
    let row = super::super::part::PageRow {
        key: tidegate_types::Key { due: 5, window: 1, seq: u64::MAX },
        size: 300,
        row: json!({ "id": "1" }),
    };
    let told = tidegate_types::Timeline {
        at: 9,
        from: 0,
        each_ms: 60_000,
        counts: vec![0, u64::MAX],
        counted_until: Some(7),
        applications: [("shop".into(), tidegate_types::Ahead { count: 2, next_due: None })].into(),
        applications_truncated: true,
    };
    for part in [
        ShardPart::Page { rows: vec![row], next: Some(tidegate_types::Key::own(6, 2)) },
        ShardPart::Timeline(Box::new(told)),
        ShardPart::Missing { shard: 3, owner: None },
        ShardPart::Whole { status: Status::Unknown, document: Value::Null },
    ] {
        let bytes = serde_json::to_vec(&NodeAnswer::Part(part.clone())).unwrap();
        let NodeAnswer::Part(read) = serde_json::from_slice(&bytes).unwrap() else { panic!("a part") };
        assert_eq!(read, part);
    }
}
