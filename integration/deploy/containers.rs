//! `docs/deploy`: its files parse, and name existing options, keys, ports and paths.

use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;
use tidegate_config::Config;
use tidegate_harness::{binary, wait_until, Site};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/deploy")
}

fn read(name: &str) -> String {
    let path = folder().join(name);
    fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn yaml(name: &str) -> Vec<Value> {
    serde_saphyr::from_multiple(&read(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
}

/// Instructions of the Dockerfile, in order: keyword and arguments.
fn instructions() -> Vec<(String, String)> {
    let text = read("Dockerfile");
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let pair = |line: &str| line.split_once(' ').map(|(word, rest)| (word.to_owned(), rest.to_owned()));
    lines.map(|line| pair(line).unwrap_or_else(|| panic!("{line}"))).collect()
}

fn instruction(word: &str) -> String {
    let all = instructions();
    let found: Vec<_> = all.iter().filter(|(known, _)| known == word).collect();
    assert_eq!(found.len(), 1, "{word}");
    found[0].1.clone()
}

/// The words of an instruction in JSON form.
fn words(json: &str) -> Vec<String> {
    serde_json::from_str(json).unwrap_or_else(|e| panic!("{json}: {e}"))
}

fn run(arguments: &[&str], environment: &BTreeMap<String, String>) -> Output {
    let mut command = Command::new(binary());
    command.args(arguments).envs(environment).output().expect("the binary")
}

/// The effective configuration, as the binary prints it; secrets of the folder `mounted` come from a folder
/// of the test.
fn shown(file: &str, environment: &BTreeMap<String, String>, mounted: &str) -> Value {
    let dir = tidegate_harness::workdir("mounted");
    let own = dir.to_string_lossy().into_owned();
    for secret in ["amqp-password", "admin-token", "tidegate-token", "tidegate-state-token"] {
        fs::write(dir.join(secret), format!("0123456789abcdef-{secret}")).expect("a secret");
    }
    fs::write(dir.join("config.toml"), file.replace(mounted, &own)).expect("the configuration");
    let environment =
        environment.iter().map(|(name, value)| (name.clone(), value.replace(mounted, &own))).collect();
    let file = dir.join("config.toml");
    let output = run(&["config", "show", "--config", file.to_str().expect("UTF-8")], &environment);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("UTF-8").replace(&own, mounted);
    serde_json::to_value(toml::from_str::<toml::Table>(&text).expect("TOML")).expect("JSON")
}

#[test]
fn the_image_is_small_and_runs_as_nobody() {
    let all = instructions();
    let stages: Vec<_> =
        all.iter().filter(|(word, _)| word == "FROM").map(|(_, rest)| rest.as_str()).collect();
    assert_eq!(stages.last(), Some(&"scratch"));
    let user = instruction("USER");
    assert!(user.split(':').all(|id| id.parse::<u32>().is_ok_and(|id| id >= 1000)), "{user}");
    assert_eq!(Path::new(&instruction("VOLUME")), Config::default().store.path);
    let port = Config::default().admin.listen.to_string();
    assert!(port.ends_with(&format!(":{}", instruction("EXPOSE"))), "{port}");
    let build = "cargo build --release --locked --features top";
    assert!(all.iter().any(|(word, rest)| word == "RUN" && rest.contains(build)));
    let binary_at = words(&instruction("ENTRYPOINT"))[0].clone();
    let copied = format!("/src/target/release/tidegate {binary_at}");
    assert!(all.iter().any(|(word, rest)| word == "COPY" && rest.ends_with(&copied)), "{copied}");
    let stack = "RUST_MIN_STACK=67108864";
    assert_eq!(instruction("ENV"), stack);
    // The image's start command and its health check are existing commands.
    let started = words(&instruction("CMD"));
    let health = instruction("HEALTHCHECK");
    let (_, checked) = health.split_once(" CMD ").expect("a command");
    let checked = words(checked);
    assert_eq!(checked[0], binary_at);
    for command in [&started[..], &checked[1..]] {
        let words: Vec<&str> = command.iter().map(String::as_str).chain(["--help"]).collect();
        assert!(run(&words, &BTreeMap::new()).status.success(), "{words:?}");
    }
}

/// Environment of a service as a map.
fn environment(service: &Value) -> BTreeMap<String, String> {
    let pairs = service["environment"].as_object().expect("an environment").iter();
    pairs.map(|(name, value)| (name.clone(), value.as_str().expect("text").to_owned())).collect()
}

#[test]
fn the_composition_fits_together() {
    let composition = yaml("compose.yaml").remove(0);
    let services = &composition["services"];
    let tidegate = &services["tidegate"];
    let build = &tidegate["build"];
    let context = folder().join(build["context"].as_str().expect("a context"));
    assert!(context.join("Cargo.toml").is_file());
    assert!(context.join(build["dockerfile"].as_str().expect("a file")).is_file());

    let given = environment(tidegate);
    let broker = environment(&services["rabbitmq"]);
    let login = format!("{}:{}", broker["RABBITMQ_DEFAULT_USER"], broker["RABBITMQ_DEFAULT_PASS"]);
    assert_eq!(given["TIDEGATE__AMQP__URI"], format!("amqp://{login}@rabbitmq:5672/%2f"));
    let config = shown("", &given, "/run/secrets");
    let listen = config["admin"]["listen"].as_str().expect("an address");
    let port = listen.rsplit(':').next().expect("a port");
    assert_eq!(tidegate["ports"][0], format!("127.0.0.1:{port}:{port}"));
    let store = config["store"]["path"].as_str().expect("a path");
    assert_eq!(tidegate["volumes"][0], format!("tidegate:{store}"));
    assert_eq!(tidegate["stop_grace_period"], "60s");
    assert!(Config::default().timeouts.drain.as_secs() < 60);

    // The secrets at Docker's default paths: Prometheus has only the token that reads the state.
    let laid = |n: usize| {
        let secret = tidegate["secrets"][n].as_str().expect("a secret");
        assert!(composition["secrets"][secret]["file"].is_string());
        format!("/run/secrets/{secret}")
    };
    assert_eq!(config["admin"]["token_file"], laid(0));
    assert_eq!(config["admin"]["state_token_file"], laid(1));
    let laid = laid(1);
    let prometheus = &services["prometheus"];
    assert_eq!(prometheus["secrets"], serde_json::json!([tidegate["secrets"][1]]));
    let scrape = yaml("prometheus.yml").remove(0);
    let job = &scrape["scrape_configs"][0];
    assert_eq!(job["authorization"]["credentials_file"], laid);
    assert_eq!(job["static_configs"][0]["targets"][0], format!("tidegate:{port}"));
    for volume in prometheus["volumes"].as_array().expect("volumes") {
        let (source, rest) = volume.as_str().and_then(|text| text.split_once(':')).expect("a mount");
        assert!(folder().join(source).is_file(), "{source}");
        assert!(rest.starts_with("/etc/prometheus/"), "{rest}");
    }
    let volumes = composition["volumes"].as_object().expect("volumes");
    assert_eq!(volumes.keys().collect::<Vec<_>>(), ["rabbitmq", "tidegate"]);
}

/// A build copies all of its context into one of its stages, which is sent to wherever the build runs.
#[test]
fn the_tokens_of_the_composition_are_in_no_build_and_no_commit() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let left_out = [root.join(".gitignore"), folder().join("Dockerfile.dockerignore")];
    let composition = yaml("compose.yaml").remove(0);
    let secrets = composition["secrets"].as_object().expect("secrets");
    assert!(!secrets.is_empty());
    for (name, secret) in secrets {
        let file = secret["file"].as_str().expect("a file");
        let file = file.strip_prefix("./").expect("beside the composition");
        let line = format!("/docs/deploy/{file}");
        for list in &left_out {
            let text = fs::read_to_string(list).expect("a list");
            assert!(text.lines().any(|known| known == line), "{name}: {} lacks {line}", list.display());
        }
    }
}

#[test]
fn the_manifests_fit_together() {
    let manifests = yaml("kubernetes.yaml");
    let of = |kind: &str| manifests.iter().find(|m| m["kind"] == kind).unwrap_or_else(|| panic!("{kind}"));
    let config_map = of("ConfigMap");
    let file = config_map["data"]["config.toml"].as_str().expect("a file");
    let config = shown(file, &BTreeMap::new(), "/etc/tidegate/secrets");

    let pod = &of("StatefulSet")["spec"]["template"]["spec"];
    assert!(pod["terminationGracePeriodSeconds"].as_u64() > Some(Config::default().timeouts.drain.as_secs()));
    assert_eq!(pod["securityContext"]["runAsNonRoot"], true);
    let user = format!("{0}:{0}", pod["securityContext"]["runAsUser"]);
    assert_eq!(instruction("USER"), user);
    let container = &pod["containers"][0];
    let port = &container["ports"][0];
    let listen = config["admin"]["listen"].as_str().expect("an address");
    assert!(listen.ends_with(&format!(":{}", port["containerPort"])), "{listen}");
    assert_eq!(of("Service")["spec"]["ports"][0]["port"], port["containerPort"]);
    assert_eq!(of("Service")["spec"]["selector"], of("StatefulSet")["spec"]["selector"]["matchLabels"]);
    let http: Value = serde_json::from_str(include_str!("../../src/admin/openapi.json")).expect("JSON");
    for probe in ["startupProbe", "livenessProbe", "readinessProbe"] {
        let asked = &container[probe]["httpGet"];
        assert_eq!(asked["port"], port["name"], "{probe}");
        assert!(http["paths"][asked["path"].as_str().expect("a path")].is_object(), "{probe}");
    }
    let words: Vec<&str> =
        container["args"].as_array().expect("args").iter().filter_map(Value::as_str).collect();
    assert!(run(&[&words[..], &["--help"]].concat(), &BTreeMap::new()).status.success(), "{words:?}");

    // Every path in the configuration is mounted, from an existing volume.
    let mounts = container["volumeMounts"].as_array().expect("mounts");
    let at = |path: &str| mounts.iter().any(|m| path.starts_with(m["mountPath"].as_str().expect("a path")));
    let named = [&config["store"]["path"], &config["admin"]["token_file"], &config["amqp"]["password_file"]];
    for path in named.into_iter().map(|path| path.as_str().expect("a path")).chain([words[2]]) {
        assert!(at(path), "{path} is not mounted");
    }
    let volumes = pod["volumes"].as_array().expect("volumes").iter().map(|volume| volume["name"].clone());
    let claims = of("StatefulSet")["spec"]["volumeClaimTemplates"].as_array().expect("claims").iter();
    let known: Vec<Value> = volumes.chain(claims.map(|claim| claim["metadata"]["name"].clone())).collect();
    assert!(mounts.iter().all(|mount| known.contains(&mount["name"])), "{known:?}");
}

/// As in the image: the listener on all addresses, with a token, and the image's health check.
#[test]
fn the_check_of_the_image_tells_whether_it_lives() {
    let site = Site::new("image");
    let token = site.dir.join("token");
    fs::write(&token, "0123456789abcdef").expect("the token");
    let mut daemon = site.start(&site.config().text("admin.token_file", &token.to_string_lossy()));
    let health = instruction("HEALTHCHECK");
    let checked = words(health.split_once(" CMD ").expect("a command").1);
    let file = daemon.config_file().to_path_buf();
    let everywhere = format!("0.0.0.0:{}", daemon.admin().port());
    let given = BTreeMap::from([
        ("TIDEGATE_CONFIG".to_owned(), file.to_string_lossy().into_owned()),
        ("TIDEGATE__ADMIN__LISTEN".to_owned(), everywhere),
    ]);
    let arguments: Vec<&str> = checked[1..].iter().map(String::as_str).collect();
    wait_until("it says that it lives", Duration::from_secs(10), || run(&arguments, &given).status.success());
    daemon.kill9();
    let told = run(&arguments, &given);
    assert_eq!(told.status.code(), Some(1), "{told:?}");
}
