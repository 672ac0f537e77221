//! The code blocks of `docs/MIGRATION.md`, each run as written.

use super::example_of;
use std::fs;
use std::path::Path;
use std::time::Duration;
use tidegate_harness::{has_node, now_ms, require_python, wait_until, Daemon, Program, Site};

/// The first code block in this language below this heading.
fn block(heading: &str, language: &str) -> String {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/MIGRATION.md");
    let text = fs::read_to_string(file).expect("the document");
    let (_, section) = text.split_once(&format!("\n{heading}\n")).expect("the heading");
    let (_, code) = section.split_once(&format!("```{language}\n")).expect("a block");
    code.split("```").next().expect("its end").to_owned()
}

fn judge(heading: &str, language: &str, interpreter: &str) {
    let site = Site::new(heading.trim_start_matches('#').trim());
    let daemon = site.start(&site.config().text("defaults.format", "passthrough"));
    let names = [("my-queue", site.queue("my-queue"))];
    let code = example_of(&site, &daemon, &block(heading, language), &names);
    fs::write(site.dir.join("recipe"), code).expect("the recipe");
    // Twice within a minute, as a user would try it.
    let ids: Vec<String> = (0..2)
        .map(|run| {
            let begun = now_ms();
            let said = Program::start(interpreter, &["recipe"], &site.dir).end();
            assert!(now_ms() - begun >= 1000, "run {run}: too early");
            let id = said.trim().strip_prefix("later 1000 ").map(str::to_owned);
            id.unwrap_or_else(|| panic!("run {run}: {said}"))
        })
        .collect();
    assert!(ids.iter().all(|id| id.len() == 36) && ids[0] != ids[1], "{ids:?}");
}

/// The three programs run one after the other with one broker and one daemon: no message is dropped as a
/// duplicate of another program's.
#[test]
fn one_after_the_other() {
    let all = [
        ("## pika", "python", "python3", require_python("pika", "python3-pika")),
        ("## kombu", "python", "python3", require_python("kombu", "python3-kombu")),
        ("## NestJS, amqplib", "javascript", "node", has_node()),
    ];
    let site = Site::new("all-recipes");
    let daemon = site.start(&site.config().text("defaults.format", "passthrough"));
    let names = [("my-queue", site.queue("my-queue"))];
    for (heading, language, interpreter, _) in all.iter().filter(|(.., there)| *there) {
        let code = example_of(&site, &daemon, &block(heading, language), &names);
        fs::write(site.dir.join("recipe"), code).expect("the recipe");
        let said = Program::start(interpreter, &["recipe"], &site.dir).end();
        assert!(said.starts_with("later 1000 "), "{heading}: {said}");
    }
}

#[test]
fn with_pika() {
    if require_python("pika", "python3-pika") {
        judge("## pika", "python", "python3");
    }
}

#[test]
fn with_kombu() {
    if require_python("kombu", "python3-kombu") {
        judge("## kombu", "python", "python3");
    }
}

#[test]
fn with_amqplib() {
    if has_node() {
        judge("## NestJS, amqplib", "javascript", "node");
    }
}

/// A consumer that rejects the first two tries and prints when it is done.
struct Rejecting<'a> {
    site: Site<'a>,
    queue: String,
    _daemon: Daemon,
}

impl Rejecting<'_> {
    fn new(name: &str) -> Self {
        let site = Site::new(&format!("rejecting-{name}"));
        let queue = site.queue("my-queue");
        let table = format!("applications.\"{queue}\"");
        let config = site
            .config()
            .text(&format!("{table}.format"), "passthrough")
            .set(&format!("{table}.redeliver"), r#"{ min = "200ms", max = "1s", attempts = 5 }"#);
        let daemon = site.start(&config);
        Rejecting { site, queue, _daemon: daemon }
    }

    fn recipe(&self, file: &str, heading: &str, language: &str) {
        let names = [("my-queue", self.queue.clone())];
        let code = example_of(&self.site, &self._daemon, &block(heading, language), &names);
        fs::write(self.site.dir.join(file), code).expect("the recipe");
    }

    fn judge(&self, heading: &str, language: &str, interpreter: &str) {
        self.recipe("recipe", heading, language);
        let program = Program::start(interpreter, &["recipe"], &self.site.dir);
        self.bound();
        self.site.client.publish(&self.site.push(&self.queue, "order 17"));
        assert_eq!(program.end().trim(), "done after 2 order 17");
    }

    /// Waits until the queue exists and has a consumer.
    fn bound(&self) {
        wait_until("its consumer", Duration::from_secs(20), || {
            self.site.node.consumers(&self.queue).is_some_and(|consumers| consumers > 0)
        });
    }
}

#[test]
fn rejected_with_pika() {
    if require_python("pika", "python3-pika") {
        Rejecting::new("pika").judge("### pika", "python", "python3");
    }
}

#[test]
fn rejected_with_amqplib() {
    if has_node() {
        Rejecting::new("amqplib").judge("### amqplib", "javascript", "node");
    }
}

#[test]
fn rejected_with_celery() {
    if !require_python("celery", "python3-celery") {
        return;
    }
    let rejecting = Rejecting::new("celery");
    rejecting.recipe("recipe.py", "### Celery", "python");
    let dir = &rejecting.site.dir;
    let alone = ["--pool", "solo", "--without-gossip", "--without-mingle", "--without-heartbeat"];
    let worker = ["-m", "celery", "-A", "recipe", "worker", "--loglevel", "INFO"];
    let worker = Program::start("python3", &[&worker[..], &alone[..]].concat(), dir);
    rejecting.bound();
    Program::start("python3", &["-c", "import recipe; recipe.push(17)"], dir).end();
    worker.wait_for("done after 2 17");
}

/// Every code block is below a heading that is tested here.
#[test]
fn all_recipes_are_run() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/MIGRATION.md");
    let text = fs::read_to_string(file).expect("the document");
    assert_eq!((text.matches("```python\n").count(), text.matches("```javascript\n").count()), (4, 2));
}
