//! Tests of where queries go, and of what becomes of them.

use super::*;
use crate::admin::{parse, ExportRefusal, ItemOf, MapState, Status};
use serde_json::json;
use std::collections::VecDeque;
use std::time::Duration;
use tidegate_config::Config;
use tidegate_types::{Answer, Asker, Command, CustomerOf, Filter, Moment, Reply, Selection};
use tokio::runtime::Runtime;
use tokio::time::timeout;

/// A desk over shards that the test plays.
struct Site {
    runtime: Runtime,
    desk: QueryDesk,
}

fn site(shards: u16) -> Site {
    let runtime = super::super::lasting::one_worker("desk", &tracing::Span::none()).unwrap();
    let desk = QueryDesk {
        others: None,
        sharder: None,
        runtime: runtime.handle().clone(),
        dead_letters: Arc::new(DeadLetterService::new(&Config::default())),
        shards: (0..shards).map(|_| Arc::default()).collect(),
        database: None,
        started: clock::now(),
    };
    Site { runtime, desk }
}

impl Site {
    fn ask(&self, request: CommandRequest) -> Receiver<CommandResponse> {
        let (sender, answer) = channel();
        self.desk.ask(Query::Command(request, sender));
        answer
    }

    /// The commands that this shard has been given, once there is one.
    fn given(&self, shard: u16) -> Vec<(CommandRequest, Sender<ShardAnswer>)> {
        let mut events = VecDeque::new();
        while events.is_empty() {
            self.desk.shards[usize::from(shard)].take(Duration::from_secs(60), &mut events);
        }
        let command = |event| {
            let LoopEvent::Command(request, reply) = event else { panic!("{event:?}") };
            (request, reply)
        };
        events.into_iter().map(command).collect()
    }

    /// The one command that this shard has been given.
    fn only(&self, shard: u16) -> (CommandRequest, Sender<ShardAnswer>) {
        let mut given = self.given(shard);
        assert_eq!(given.len(), 1, "{given:?}");
        given.remove(0)
    }

    /// Whether this shard has been given nothing.
    fn has_nothing(&self, shard: u16) -> bool {
        let mut events = VecDeque::new();
        self.desk.shards[usize::from(shard)].take(Duration::ZERO, &mut events);
        events.is_empty()
    }

    fn heard<A>(&self, answer: Receiver<A>) -> Option<A> {
        self.runtime.block_on(answer).ok()
    }

    /// Waits until nobody waits for this answer any more.
    fn is_left(&self, mut reply: Sender<ShardAnswer>) {
        let closed = async { timeout(Duration::from_secs(60), reply.closed()).await };
        assert!(self.runtime.block_on(closed).is_ok(), "somebody waits for the answer");
    }
}

fn carried(answer: Answer) -> ShardAnswer {
    let reply = Box::new(Reply { asker: Asker::Local(1), command: None, answer });
    ShardAnswer::Carried { reply, store_identity: 0 }
}

fn nothing_listed() -> ShardAnswer {
    carried(Answer::Listed { items: vec![], next: None })
}

fn list(query: &str) -> CommandRequest {
    Command::List(parse::filter(Some(query)).unwrap())
}

fn outlook(query: &str) -> CommandRequest {
    Command::TimelineQuery(parse::timeline(Some(query)).unwrap())
}

#[test]
fn a_command_goes_to_the_home_of_its_application_alone() {
    let site = site(4);
    for (name, home) in [("shop", 3), ("mail", 2), ("größe", 2)] {
        let app = || Box::<str>::from(name);
        let item = || ItemOf { application: app(), id: "1".into() };
        let of = || CustomerOf { application: app(), customer: "ann".into() };
        let commands: Vec<CommandRequest> = vec![
            Command::Cancel(item()),
            Command::Lookup(item()),
            Command::Reschedule(item(), Moment::After(5)),
            Command::CancelAll(of()),
            Command::Count(of()),
            Command::Flush(of()),
            Command::PauseCustomer(of(), None),
            Command::ResumeCustomer(of()),
            Command::CancelSelected(Selection::all(app())),
            Command::CountSelected(Selection::all(app())),
            Command::FlushAll(app()),
            Command::Pause(app(), None),
            Command::Resume(app()),
            Command::Slow(app(), None, None),
            Command::Retry(app()),
            Command::DropParked(app()),
            list(&format!("application={name}&limit=7")),
            outlook(&format!("application={name}")),
        ];
        for command in commands {
            let answer = site.ask(command.clone());
            let (given, reply) = site.only(home);
            assert_eq!(given, command);
            reply.send(carried(Answer::Done { changed: true })).unwrap();
            let document = json!({ "result": "done", "changed": true });
            assert_eq!(site.heard(answer), Some(CommandResponse { status: Status::Known, document }));
            assert!((0..4).all(|shard| site.has_nothing(shard)), "{command:?}");
        }
    }
}

#[test]
fn one_shard_is_given_everything_as_it_is() {
    let site = site(1);
    for command in [list("limit=7&cursor=5-1-1"), outlook(""), Command::Retry("shop".into())] {
        let _answer = site.ask(command.clone());
        assert_eq!(site.only(0).0, command);
    }
}

#[test]
fn all_shards_are_asked_for_their_part_of_a_list() {
    let site = site(3);
    let answer = site.ask(list("limit=7&cursor=5-1-1-1"));
    for shard in 0..3 {
        let (given, reply) = site.only(shard);
        let from = tidegate_types::Key { due: 5, window: 1, seq: if shard == 0 { 2 } else { 1 } };
        assert_eq!(given, Command::List(Filter { limit: 7, from, ..Filter::default() }));
        reply.send(nothing_listed()).unwrap();
    }
    let document = json!({ "items": [], "next": null });
    assert_eq!(site.heard(answer), Some(CommandResponse { status: Status::Known, document }));
}

#[test]
fn of_many_shards_some_are_asked_at_a_time_and_all_in_the_end() {
    let (site, shards) = (site(40), 0..40);
    let answer = site.ask(list(""));
    let mut waiting: VecDeque<_> = shards.clone().take(MOST_ASKED).map(|shard| site.only(shard).1).collect();
    for shard in shards.skip(MOST_ASKED) {
        assert!(site.has_nothing(shard), "{shard}");
        waiting.pop_front().unwrap().send(nothing_listed()).unwrap();
        waiting.push_back(site.only(shard).1);
    }
    waiting.into_iter().for_each(|reply| reply.send(nothing_listed()).unwrap());
    assert_eq!(site.heard(answer).unwrap().status, Status::Known);
}

#[test]
fn the_refusal_of_one_shard_is_the_answer_and_the_others_need_not_go_on() {
    let site = site(3);
    for command in [list(""), outlook("")] {
        let answer = site.ask(command);
        let (first, second, third) = (site.only(0).1, site.only(1).1, site.only(2).1);
        third.send(ShardAnswer::Refused("there is no store".to_owned())).unwrap();
        let document = json!({ "error": "there is no store" });
        assert_eq!(site.heard(answer), Some(CommandResponse { status: Status::Unavailable, document }));
        site.is_left(first);
        site.is_left(second);
    }
}

#[test]
fn without_a_shard_that_has_ended_there_is_no_answer() {
    let site = site(2);
    site.desk.shards[1].close();
    let answer = site.ask(list(""));
    let (_, first) = site.only(0);
    assert_eq!(site.heard(answer), None);
    site.is_left(first);
}

#[test]
fn shards_see_that_a_client_has_left() {
    let site = site(2);
    for command in [list(""), outlook("")] {
        let answer = site.ask(command);
        let (first, second) = (site.only(0).1, site.only(1).1);
        drop(answer);
        site.is_left(first);
        site.is_left(second);
    }
    let answer = site.ask(list("application=shop"));
    let home = (0..2).find(|shard| tidegate_wire::home("shop", 2) == *shard).unwrap();
    let (_, only) = site.only(home);
    drop(answer);
    site.is_left(only);
}

#[test]
fn the_state_has_the_map_and_the_links_of_a_sharder_if_there_is_one() {
    let told = |sharder: Option<SharderView>| {
        let mut site = site(2);
        site.desk.sharder = sharder;
        let (sender, answer) = channel();
        site.desk.ask(Query::State(StateScope::AllNodes, sender));
        for shard in &site.desk.shards {
            let mut events = VecDeque::new();
            shard.take(Duration::ZERO, &mut events);
            let event = events.pop_front();
            let Some(LoopEvent::Control(ControlEvent::State(reply))) = event else { panic!("{event:?}") };
            reply.send(ShardState::default()).unwrap();
        }
        site.heard(answer).unwrap()
    };
    let alone = told(None);
    assert_eq!((alone.map, alone.links.len()), (None, 0));
    let view = SharderView::default();
    let counted = |of: [u64; 5]| {
        let [forwarded, misplaced, bound, corrected, bind_failures] = of;
        Some(MapState { forwarded, misplaced, bound, corrected, bind_failures })
    };
    assert_eq!(told(Some(view.clone())).map, counted([0; 5]), "before the sharder starts");
    (0..5).for_each(|_| view.map.forwarded(true));
    (0..4).for_each(|_| view.map.forwarded(false));
    (0..3).for_each(|_| view.map.bound());
    (0..2).for_each(|_| view.map.corrected());
    view.map.bind_failed();
    let several = told(Some(view));
    assert_eq!(several.map, counted([5, 4, 3, 2, 1]));
    assert_eq!(several.links.iter().map(|link| &*link.side).collect::<Vec<_>>(), ["sharder"]);
}

#[test]
fn an_export_is_begun_in_all_shards_at_once_and_one_refusal_ends_it() {
    let site = site(3);
    let (sender, answer) = channel();
    site.desk.ask(Query::Export(sender));
    let begun = |shard: usize| {
        let mut events = VecDeque::new();
        site.desk.shards[shard].take(Duration::ZERO, &mut events);
        let event = events.pop_front();
        let Some(LoopEvent::Control(ControlEvent::Export(reply))) = event else { panic!("{event:?}") };
        reply
    };
    let (first, mut second, mut third) = (begun(0), begun(1), begun(2));
    drop(first.send(Err(ExportRefusal::Busy)));
    let refused = site.heard(answer).unwrap().map(drop);
    assert_eq!(refused, Err(ExportRefusal::Busy));
    site.runtime.block_on(async { tokio::join!(second.closed(), third.closed()) });
}
