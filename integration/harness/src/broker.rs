//! A private RabbitMQ node with its own name, ports, directories and epmd: nothing of the machine is changed.
//!
//! The system's broker service is never started, stopped or contacted. Plugins are disabled, except the one
//! for logins by certificate in tests of TLS, and the management API in tests of it.

use crate::authority::Signed;
use crate::bounds;
use crate::guard;
use crate::machine;
use crate::ports::free_port;
use crate::proxy::Proxy;
use crate::require::skip_named;
use crate::util::wait_until;
use lapin::uri::AMQPUri;
use rustix::process::{kill_process, Pid, Signal};
use std::fs::{self, File};
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::ops::Deref;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

/// The broker named by `TIDEGATE_TEST_AMQP`, used instead of a private node by tests that do not control it.
pub fn external_uri() -> Option<String> {
    std::env::var("TIDEGATE_TEST_AMQP").ok().filter(|u| !u.is_empty())
}

/// Reason for skipping a test that needs to control the broker.
const UNCONTROLLED: &str = "TIDEGATE_TEST_AMQP names a broker that the test cannot control";

/// A broker: a private node, or an external one, which tests cannot control.
#[derive(Debug)]
pub struct Node {
    uri: String,
    private: Option<Private>,
}

/// A node that a test has for itself ([`Node::lent`]); given back when dropped.
#[derive(Debug)]
pub struct LentNode(Option<Node>);

/// Nodes that are not lent at present. Each start of a node costs some six seconds of processor time.
static RESERVE: Mutex<Vec<Node>> = Mutex::new(Vec::new());

impl Deref for LentNode {
    type Target = Node;

    fn deref(&self) -> &Node {
        self.0.as_ref().expect("a node until the drop")
    }
}

impl Drop for LentNode {
    fn drop(&mut self) {
        // What a failed test has left of a node is unknown.
        let Some(node) = self.0.take().filter(|node| !std::thread::panicking() && node.private().runs())
        else {
            return;
        };
        node.memory_alarm(false);
        RESERVE.lock().unwrap_or_else(PoisonError::into_inner).push(node);
    }
}

#[derive(Debug)]
struct Private {
    sbin: PathBuf,
    dir: PathBuf,
    port: u16,
    dist_port: u16,
    epmd_port: u16,
    children: Mutex<Children>,
}

#[derive(Debug, Default)]
struct Children {
    epmd: Option<Child>,
    beam: Option<Child>,
}

/// A program that every node but the first evaluates at its start. A node loads some 900 modules one by one,
/// and for each of them Erlang scans the table of all exported functions. Loading all at once takes 40 % less
/// wall and processor time.
static PRELOAD: OnceLock<PathBuf> = OnceLock::new();

/// Modules with an `on_load` function are not preloaded.
const PRELOAD_PROGRAM: &str = r#"
{ok, Listed} = file:consult("MODULES"),
Read = fun({Module, File}) ->
    case erlang:module_loaded(Module) orelse file:read_file(File) of
        {ok, Code} -> [{Module, File, Code}];
        _ -> []
    end
end,
Load = fun Load(Modules) ->
    case code:prepare_loading(Modules) of
        {ok, Prepared} -> code:finish_loading(Prepared);
        {error, Not} -> Load([Module || Module <- Modules, not lists:keymember(element(1, Module), 1, Not)])
    end
end,
Load(lists:flatmap(Read, Listed)).
"#;

/// Makes the workers of at-least-once dead-lettering temporary. If the election of a new quorum queue takes
/// longer than five seconds, RabbitMQ gives the queue up, its worker fails over and over, and the supervisor of
/// all of them ends for good: then no test that shares the node can declare or consume from such a queue. A
/// worker that is not started again leaves the others alone. (RabbitMQ 3.10 starts them again in any case, 4.3
/// after a failure.)
const KEEP_DEAD_LETTERING: &str = "sys:replace_state(rabbit_fifo_dlx_sup, fun(State) -> \
     {Ids, Children} = element(4, State), \
     Temporary = fun(_, Child) -> \
     true = lists:member(element(5, Child), [permanent, transient]), setelement(5, Child, temporary) end, \
     setelement(4, State, {Ids, maps:map(Temporary, Children)}) end), ok.";

/// Users of every private node; the password is the name.
const USERS: [&str; 2] = ["guest", "other"];
/// Virtual hosts of every private node.
const VHOSTS: [&str; 3] = ["/", "plain", "spare"];

impl Node {
    /// The node shared by all tests of a binary: the external one if it is named, otherwise started at the
    /// first use.
    pub fn shared() -> &'static Node {
        // Before the lock, so that a test that waits to enter does not block the others.
        bounds::enter();
        static NODE: OnceLock<Node> = OnceLock::new();
        NODE.get_or_init(|| match external_uri() {
            Some(uri) => Node { uri, private: None },
            None => Node::start("", ""),
        })
    }

    /// The shared node if it is private; otherwise reports the test as skipped.
    pub fn controlled(test: &str) -> Option<&'static Node> {
        let node = Node::shared();
        if node.private.is_none() {
            skip_named(test, UNCONTROLLED);
            return None;
        }
        Some(node)
    }

    /// A separate node with extra lines of `rabbitmq.conf`; with an external broker `None`, and the test is
    /// reported as skipped.
    pub fn own(test: &str, conf: &str) -> Option<Node> {
        if external_uri().is_some() {
            skip_named(test, UNCONTROLLED);
            return None;
        }
        Some(Node::start(conf, ""))
    }

    /// As [`Node::own`] without extra lines, for a test that stops the node, raises its alarm or reads its
    /// counters: other tests have had the node before, or will have it afterwards.
    pub fn lent(test: &str) -> Option<LentNode> {
        if external_uri().is_some() {
            skip_named(test, UNCONTROLLED);
            return None;
        }
        let reserved = RESERVE.lock().unwrap_or_else(PoisonError::into_inner).pop();
        Some(LentNode(Some(reserved.unwrap_or_else(|| Node::start("", "")))))
    }

    /// As [`Node::own`], with a TLS listener, whose port is returned, and logins by certificate: the user is
    /// its common name. With `asks` a client must present a certificate of this authority.
    pub fn with_tls(test: &str, shown: &Signed, authority: &Path, asks: bool) -> Option<(Node, u16)> {
        if external_uri().is_some() {
            skip_named(test, UNCONTROLLED);
            return None;
        }
        let port = free_port();
        let conf = format!(
            "listeners.ssl.1 = 127.0.0.1:{port}\nssl_options.cacertfile = {}\nssl_options.certfile = {}\n\
             ssl_options.keyfile = {}\nssl_options.verify = verify_peer\nssl_options.fail_if_no_peer_cert = {asks}\n\
             ssl_cert_login_from = common_name\nauth_mechanisms.1 = PLAIN\nauth_mechanisms.2 = EXTERNAL",
            authority.display(),
            shown.certificate.display(),
            shown.key.display(),
        );
        Some((Node::start(&conf, "rabbitmq_auth_mechanism_ssl"), port))
    }

    /// As [`Node::own`], with the management API, whose port is returned.
    pub fn with_management(test: &str) -> Option<(Node, u16)> {
        if external_uri().is_some() {
            skip_named(test, UNCONTROLLED);
            return None;
        }
        let port = free_port();
        let conf = format!("management.tcp.ip = 127.0.0.1\nmanagement.tcp.port = {port}");
        let node = Node::start(&conf, "rabbitmq_management");
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        wait_until("the management API listens", Duration::from_secs(30), || {
            TcpStream::connect(address).is_ok()
        });
        Some((node, port))
    }

    /// Starts a private node and waits until it serves. `plugins`: comma-separated names.
    pub fn start(conf: &str, plugins: &str) -> Node {
        let sbin = find_sbin();
        let dir = guard::node_dir();
        let private = Private {
            sbin,
            port: free_port(),
            dist_port: free_port(),
            epmd_port: free_port(),
            children: Mutex::default(),
            dir,
        };
        private.prepare(conf, plugins);
        let uri = format!("amqp://guest:guest@127.0.0.1:{}/%2f", private.port);
        let node = Node { uri, private: Some(private) };
        node.launch();
        PRELOAD.get_or_init(|| node.write_preload());
        node
    }

    /// Writes the Erlang program that loads all modules that this node has loaded. Returns its path.
    fn write_preload(&self) -> PathBuf {
        let dir = guard::workdir("preload");
        let (modules, program) = (dir.join("modules"), dir.join("program"));
        self.eval(&format!(
            "file:write_file(\"{}\", [io_lib:format(\"~0p.~n\", [Loaded]) \
             || {{_, [_ | _]}} = Loaded <- code:all_loaded()]).",
            modules.display()
        ));
        fs::write(&program, PRELOAD_PROGRAM.replace("MODULES", &modules.display().to_string()))
            .expect("what loads modules");
        program
    }

    /// AMQP URI of the virtual host `/` as `guest` (or of the external broker).
    pub fn uri(&self) -> &str {
        &self.uri
    }

    /// The same for another user and virtual host (already percent-encoded) of a private node.
    pub fn uri_of(&self, user: &str, vhost: &str) -> String {
        let private = self.private();
        format!("amqp://{user}:{user}@127.0.0.1:{}/{vhost}", private.port)
    }

    /// Socket address, virtual host, user and password, for raw connections.
    pub fn login(&self) -> (SocketAddr, String, String, String) {
        let uri: AMQPUri = self.uri.parse().expect("a valid AMQP URI");
        let host = uri.authority.host.clone();
        let mut found = std::net::ToSocketAddrs::to_socket_addrs(&(host.as_str(), uri.authority.port))
            .expect("the broker's host name");
        let address = found.next().expect("an address of the broker");
        (address, uri.vhost, uri.authority.userinfo.username, uri.authority.userinfo.password)
    }

    /// A proxy in front of the broker, and the AMQP URI through it.
    pub fn proxied(&self) -> (Proxy, String) {
        let (broker, ..) = self.login();
        let proxy = Proxy::start(broker);
        let uri: AMQPUri = self.uri.parse().expect("a valid AMQP URI");
        let (host, port) = (&uri.authority.host, uri.authority.port);
        let there = self.uri.replace(&format!("{host}:{port}"), &proxy.address().to_string());
        (proxy, there)
    }

    fn private(&self) -> &Private {
        self.private.as_ref().expect("a private node")
    }

    /// Major and minor release of a private node, from its start banner; `None` for an external broker.
    pub fn release(&self) -> Option<(u32, u32)> {
        let out = fs::read_to_string(self.private.as_ref()?.dir.join("out")).expect("what the node has told");
        // The banner may contain colour codes.
        let told = out.lines().find_map(|line| line.split_once("RabbitMQ"))?.1;
        told.split_whitespace().find_map(|word| {
            let mut numbers = word.split('.').map(str::parse::<u32>);
            Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
        })
    }

    /// Whether it is a private node of this release or a later one.
    pub fn is_since(&self, major: u32, minor: u32) -> bool {
        self.release().is_some_and(|release| release >= (major, minor))
    }

    /// Evaluates an Erlang expression, which ends with a full stop, in the node. Returns its result on one
    /// line. Uses `erl_call`, because `rabbitmqctl` starts a whole Erlang VM, which costs a second of
    /// processor time. Without `erl_call`, or if it cannot reach a node of another release, `rabbitmqctl` is
    /// used.
    pub fn eval(&self, expression: &str) -> String {
        self.call(expression).unwrap_or_else(|| self.ctl(&["eval", expression]))
    }

    fn call(&self, expression: &str) -> Option<String> {
        let private = self.private();
        let mut command = Command::new("erl_call");
        private.environment(&mut command);
        let cookie = private.cookie();
        command.args(["-e", "-R", "-n", &private.name(), "-c", &cookie]);
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
        let mut child = child.ok()?;
        let inner = expression.trim_end().trim_end_matches('.');
        let whole = format!("lists:flatten(io_lib:format(\"~0p\", [begin {inner} end])).\n");
        // If `erl_call` does not read it, its exit code says so.
        let _written = child.stdin.take()?.write_all(whole.as_bytes());
        let out = child.wait_with_output().expect("erl_call ends");
        let text = String::from_utf8_lossy(&out.stdout);
        if !out.status.success() || text.is_empty() {
            return None;
        }
        let told = text.strip_prefix("{ok, \"").and_then(|text| text.trim_end().strip_suffix("\"}"));
        Some(told.unwrap_or_else(|| panic!("{expression}: {text}")).to_owned())
    }

    /// Does the same as `rabbitmqctl` with these arguments; for users, permissions and virtual hosts it uses
    /// [`Node::eval`].
    pub fn ctl(&self, arguments: &[&str]) -> String {
        match in_erlang(arguments) {
            Some(expression) => {
                let told = self.eval(&expression);
                assert_eq!(told, "ok", "{arguments:?}");
                told
            }
            None => self.rabbitmqctl(arguments),
        }
    }

    /// Runs `rabbitmqctl` against the node.
    pub fn rabbitmqctl(&self, arguments: &[&str]) -> String {
        let private = self.private();
        let mut command = Command::new(private.sbin.join("rabbitmqctl"));
        private.environment(&mut command);
        let out = command.arg("-q").args(arguments).output().expect("rabbitmqctl runs");
        let text = String::from_utf8_lossy(&out.stdout).trim().to_owned();
        assert!(
            out.status.success(),
            "rabbitmqctl {arguments:?}: {text} {}",
            String::from_utf8_lossy(&out.stderr)
        );
        text
    }

    /// Number of messages returned as unroutable since the node's start.
    pub fn returned_total(&self) -> u64 {
        let text = self.eval(
            "lists:sum([maps:get(messages_unroutable_returned_total, M, 0) || \
             {_, M} <- maps:to_list(rabbit_global_counters:overview())]).",
        );
        text.parse().unwrap_or_else(|_| panic!("not a counter: {text}"))
    }

    /// Ready and unacked messages of a queue in the virtual host `/`, at present: what the broker tells of a quorum
    /// queue is up to five seconds old.
    pub fn messages(&self, queue: &str) -> Option<u64> {
        self.of_queue(
            queue,
            "case amqqueue:get_type(Q) of \
             rabbit_quorum_queue -> \
             {ok, {_, N}, _} = ra:local_query(amqqueue:get_pid(Q), fun rabbit_fifo:query_messages_total/1), N; \
             _ -> proplists:get_value(messages, rabbit_amqqueue:info(Q, [messages])) end",
        )
    }

    /// Consumers of a queue in the virtual host `/`.
    pub fn consumers(&self, queue: &str) -> Option<u64> {
        self.of_queue(queue, "length(rabbit_amqqueue:consumers(Q))")
    }

    /// The bindings of an exchange of the virtual host `/`, sorted: the name of the queue or exchange that it
    /// leads to, and the routing key. Empty if there is no such exchange.
    pub fn bindings(&self, exchange: &str) -> Vec<(String, String)> {
        // The letter in front keeps an empty key in quotation marks.
        let told = self.eval(&format!(
            "[{{element(4, element(4, B)), <<\"k\", (element(3, B))/binary>>}} || B <- \
             rabbit_binding:list_for_source(rabbit_misc:r(<<\"/\">>, exchange, <<\"{exchange}\">>))]."
        ));
        let told = told.replace('\\', "");
        let words: Vec<&str> = told.split('"').skip(1).step_by(2).collect();
        let binding = |pair: &[&str]| (pair[0].to_owned(), pair[1].trim_start_matches('k').to_owned());
        let mut all: Vec<_> = words.chunks_exact(2).map(binding).collect();
        all.sort();
        all
    }

    /// A number that an Erlang expression returns for the queue `Q`; `None` if there is no such queue.
    fn of_queue(&self, queue: &str, expression: &str) -> Option<u64> {
        let found = format!("rabbit_amqqueue:lookup(rabbit_misc:r(<<\"/\">>, queue, <<\"{queue}\">>))");
        self.eval(&format!("case {found} of {{ok, Q}} -> {expression}; _ -> none end.")).parse().ok()
    }

    /// Raises or clears the memory alarm, which blocks all publishing connections. Sets the alarm itself,
    /// because the node's memory monitor needs a `/proc` that a container may lack.
    pub fn memory_alarm(&self, on: bool) {
        let alarm = "{resource_limit, memory, node()}";
        self.eval(&if on {
            format!("rabbit_alarm:set_alarm({{{alarm}, []}}).")
        } else {
            format!("rabbit_alarm:clear_alarm({alarm}).")
        });
    }

    /// From now on these queues of the virtual host `/` do not answer, like quorum queues without a majority,
    /// until [`Node::wake`].
    pub fn silence(&self, queues: &[String]) {
        self.with_each("suspend", queues);
    }

    /// Resumes queues after [`Node::silence`].
    pub fn wake(&self, queues: &[String]) {
        self.with_each("resume", queues);
    }

    fn with_each(&self, what: &str, queues: &[String]) {
        let names: Vec<String> = queues.iter().map(|name| format!("<<\"{name}\">>")).collect();
        self.eval(&format!(
            "[begin {{ok, Q}} = rabbit_amqqueue:lookup(rabbit_misc:r(<<\"/\">>, queue, N)), \
             sys:{what}(amqqueue:get_pid(Q)) end || N <- [{}]].",
            names.join(",")
        ));
    }

    /// Closes all connections of a user, as an operator does.
    pub fn close_connections(&self, user: &str) {
        self.eval(&format!(
            "[spawn(fun() -> rabbit_networking:close_connection(P, <<\"by the test\">>) end) \
             || {{P, Properties}} <- ets:tab2list(connection_created), \
             proplists:get_value(user, Properties) =:= <<\"{user}\">>]."
        ));
    }

    /// Maximum frame size that new connections can negotiate, bytes.
    pub fn frame_max(&self, bytes: u32) {
        self.eval(&format!("application:set_env(rabbit, frame_max, {bytes})."));
    }

    /// Processor time that a private node has used since its start, microseconds.
    pub fn cpu_us(&self) -> u64 {
        let pid = self.private().children().beam.as_ref().map(Child::id);
        machine::cpu_us(pid.expect("a running node"))
    }

    /// Stops the node as an operator does, and waits for its end.
    pub fn stop(&self) {
        self.private().end(Signal::TERM);
    }

    /// Kills the node's process.
    ///
    /// Just before, tables that the broker writes asynchronously are synced. They hold the election terms of
    /// quorum queues: RabbitMQ 3.10 never finds a leader for a queue that was declared or restarted in the
    /// second before a kill, which these tests do not cover. Messages are not affected.
    pub fn kill9(&self) {
        self.eval("[dets:sync(Table) || Table <- dets:all()].");
        self.private().end(Signal::KILL);
    }

    /// Starts the node again after [`Node::stop`] or [`Node::kill9`], with the same data.
    pub fn start_again(&self) {
        self.launch();
    }

    fn launch(&self) {
        self.private().launch();
        if let Some((major, minor)) = self.release() {
            // Before a program for the inside of the node, whose error would not name the cause.
            assert!(
                (major, minor) >= (3, 10),
                "RabbitMQ {major}.{minor} is too old: tidegate needs 3.10 or later, as in Debian 12 or Ubuntu 24.04"
            );
        }
        assert_eq!(self.eval(KEEP_DEAD_LETTERING), "ok");
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Some(private) = &self.private {
            private.end(Signal::KILL);
            let epmd = private.children().epmd.take();
            if let Some(mut epmd) = epmd {
                let _gone = epmd.kill();
                let _reaped = epmd.wait();
                guard::forget(epmd.id());
            }
        }
    }
}

impl Private {
    fn children(&self) -> MutexGuard<'_, Children> {
        self.children.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn prepare(&self, conf: &str, plugins: &str) {
        for sub in ["home", "mnesia", "log"] {
            fs::create_dir(self.dir.join(sub)).expect("a directory for the node");
        }
        let cookie = self.dir.join("home/.erlang.cookie");
        fs::write(&cookie, self.cookie()).expect("the cookie");
        fs::set_permissions(&cookie, fs::Permissions::from_mode(0o400)).expect("the cookie's mode");
        fs::write(self.dir.join("enabled_plugins"), format!("[{plugins}].\n")).expect("the list of plugins");
        let definitions = self.dir.join("definitions.json");
        fs::write(&definitions, definitions_json()).expect("the definitions");
        let conf = format!(
            "listeners.tcp.1 = 127.0.0.1:{}\nloopback_users = none\nload_definitions = {}\n{conf}\n",
            self.port,
            definitions.display()
        );
        fs::write(self.dir.join("rabbitmq.conf"), conf).expect("the node's configuration");
    }

    fn name(&self) -> String {
        format!("tg{}@localhost", self.port)
    }

    fn cookie(&self) -> String {
        format!("TIDEGATE{}", self.port)
    }

    fn environment(&self, command: &mut Command) {
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("RABBITMQ_") {
                command.env_remove(name);
            }
        }
        let path = |p: &str| self.dir.join(p);
        command
            // Crash dumps of a killed node are written here.
            .current_dir(&self.dir)
            .env("HOME", path("home"))
            .env("ERL_EPMD_PORT", self.epmd_port.to_string())
            .env("ERL_EPMD_ADDRESS", "127.0.0.1")
            // A host name that resolves on any machine, also in a container.
            .env("RABBITMQ_NODENAME", self.name())
            .env("RABBITMQ_NODE_PORT", self.port.to_string())
            .env("RABBITMQ_DIST_PORT", self.dist_port.to_string())
            .env("RABBITMQ_MNESIA_BASE", path("mnesia"))
            .env("RABBITMQ_LOG_BASE", path("log"))
            .env("RABBITMQ_ENABLED_PLUGINS_FILE", path("enabled_plugins"))
            .env("RABBITMQ_PID_FILE", path("pid"))
            .env("RABBITMQ_CONFIG_FILE", path("rabbitmq.conf"))
            .env("RABBITMQ_CONF_ENV_FILE", path("no-such-file"))
            // The start script then replaces itself with the Erlang VM, so the child's process id is that of
            // the node.
            .env("RABBITMQ_ALLOW_INPUT", "1");
    }

    fn launch(&self) {
        let mut children = self.children();
        if children.epmd.is_none() {
            // In the foreground and before the node, which would otherwise start it as a daemon.
            let epmd = Command::new(find_epmd(&self.sbin))
                .args(["-port", &self.epmd_port.to_string(), "-address", "127.0.0.1"])
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .process_group(0)
                .spawn()
                .expect("epmd starts");
            guard::watch(epmd.id());
            children.epmd = Some(epmd);
            let address = SocketAddr::from(([127, 0, 0, 1], self.epmd_port));
            wait_until("epmd listens", Duration::from_secs(10), || TcpStream::connect(address).is_ok());
        }
        let out_path = self.dir.join("out");
        let out = File::create(&out_path).expect("the node's output file");
        let mut command = Command::new(self.sbin.join("rabbitmq-server"));
        self.environment(&mut command);
        if let Some(program) = PRELOAD.get() {
            command.env("ERL_AFLAGS", format!("-run file eval {}", program.display()));
        }
        let beam = command
            .arg("-noinput")
            .stdin(Stdio::null())
            .stderr(out.try_clone().expect("a second handle"))
            .stdout(out)
            .process_group(0)
            .spawn()
            .expect("rabbitmq-server starts");
        guard::watch(beam.id());
        let pid = beam.id();
        children.beam = Some(beam);
        drop(children);
        // Several start at one time, each for six seconds of processor time, and the machine may have other work.
        wait_until("the broker's start", Duration::from_secs(300), || {
            let text = fs::read_to_string(&out_path).unwrap_or_default();
            assert!(guard::alive(pid), "the broker ended at its start:\n{text}");
            text.contains("completed with")
        });
    }

    fn runs(&self) -> bool {
        self.children().beam.as_mut().is_some_and(|beam| matches!(beam.try_wait(), Ok(None)))
    }

    fn end(&self, signal: Signal) {
        let taken = self.children().beam.take();
        let Some(mut beam) = taken else { return };
        let pid = Pid::from_child(&beam);
        let _sent = kill_process(pid, signal);
        let limit = std::time::Instant::now() + Duration::from_secs(30);
        loop {
            match beam.try_wait() {
                Ok(None) if std::time::Instant::now() < limit => {
                    std::thread::sleep(Duration::from_millis(20));
                }
                Ok(None) => {
                    let _sent = kill_process(pid, Signal::KILL);
                }
                Ok(Some(_)) | Err(_) => break,
            }
        }
        guard::forget(beam.id());
    }
}

/// The Erlang expression for a frequent `rabbitmqctl` command; `None` for others. Evaluated by
/// [`Node::eval`], it needs no new Erlang VM.
fn in_erlang(arguments: &[&str]) -> Option<String> {
    let quoted: Vec<String> = arguments.iter().map(|word| format!("<<{:?}>>", word)).collect();
    let words: Vec<&str> = quoted.iter().map(String::as_str).collect();
    Some(match (arguments.first()?, words.get(1..)?) {
        (&"add_user", [user, password]) => {
            format!("rabbit_auth_backend_internal:add_user({user}, {password}, <<\"test\">>).")
        }
        (&"add_vhost", [vhost]) => format!("rabbit_vhost:add({vhost}, <<\"test\">>)."),
        (&"set_permissions", [_, vhost, user, configure, write, read]) if arguments[1] == "-p" => format!(
            "rabbit_auth_backend_internal:set_permissions({user}, {vhost}, {configure}, {write}, {read}, <<\"test\">>)."
        ),
        _ => return None,
    })
}

fn definitions_json() -> String {
    let users = USERS.map(|u| serde_json::json!({"name": u, "password": u, "tags": "administrator"}));
    let vhosts = VHOSTS.map(|v| serde_json::json!({"name": v}));
    let mut permissions = Vec::new();
    for user in USERS {
        for vhost in VHOSTS {
            permissions.push(serde_json::json!({
                "user": user, "vhost": vhost, "configure": ".*", "write": ".*", "read": ".*"
            }));
        }
    }
    serde_json::json!({"users": users, "vhosts": vhosts, "permissions": permissions}).to_string()
}

fn find_sbin() -> PathBuf {
    if let Some(dir) = std::env::var_os("TIDEGATE_TEST_SBIN") {
        return PathBuf::from(dir);
    }
    let base = Path::new("/usr/lib/rabbitmq/lib");
    let found = fs::read_dir(base).into_iter().flatten().flatten().map(|e| e.path().join("sbin"));
    let mut found: Vec<PathBuf> = found.filter(|p| p.join("rabbitmq-server").exists()).collect();
    found.sort();
    found.pop().unwrap_or_else(|| {
        panic!(
            "no RabbitMQ below {}: install rabbitmq-server, or set TIDEGATE_TEST_SBIN or TIDEGATE_TEST_AMQP",
            base.display()
        )
    })
}

/// Next to the scripts of a broker of another release; on the path in Debian; otherwise next to the Erlang
/// VM.
fn find_epmd(sbin: &Path) -> PathBuf {
    let own = sbin.join("epmd");
    if own.exists() {
        return own;
    }
    for dir in std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()) {
        let candidate = dir.join("epmd");
        if candidate.exists() {
            return candidate;
        }
    }
    let erts = fs::read_dir("/usr/lib/erlang").into_iter().flatten().flatten();
    let mut found = erts.map(|e| e.path().join("bin/epmd")).filter(|p| p.exists());
    found.next().expect("epmd, which comes with Erlang")
}
