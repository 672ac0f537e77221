//! `top` on a terminal made by script(1): its output, and that it restores the terminal. A build without the
//! feature says what is missing.

use std::fs;
use std::path::Path;
use std::process::Command;
use tidegate_harness::{binary, require, Program};

/// The program under test, from any directory.
fn program() -> String {
    fs::canonicalize(binary()).expect("the binary").display().to_string()
}

/// Runs a shell script on a terminal of 30 rows and 100 columns, with keys from a pipe.
fn on_a_terminal(dir: &Path, lines: &str) -> (Program, fs::File) {
    let _ = fs::remove_file(dir.join("keys"));
    let made = Command::new("mkfifo").arg(dir.join("keys")).status().expect("mkfifo runs");
    assert!(made.success());
    let text = format!("stty rows 30 cols 100\nbefore=$(stty -g)\n{lines}\necho \"ended $?\"\n");
    let text = text + "test \"$before\" = \"$(stty -g)\" && echo restored\n";
    fs::write(dir.join("scene.sh"), text).expect("the scene");
    // Opened for reading too: opening it for writing only would block until a reader comes.
    let keys = fs::OpenOptions::new().read(true).write(true).open(dir.join("keys")).expect("the pipe");
    let line = "TERM=xterm exec script -qfec 'sh scene.sh' /dev/null <keys";
    (Program::start("sh", &["-c", line], dir), keys)
}

#[cfg(feature = "top")]
#[test]
fn it_shows_a_daemon_that_lives_and_one_that_is_gone_and_gives_the_terminal_back() {
    use std::io::Write;
    /// Enters the alternate screen, and leaves it.
    const ENTERS: &str = "\u{1b}[?1049h";
    const LEAVES: &str = "\u{1b}[?1049l";
    if !require("script") || !require("mkfifo") {
        return;
    }
    let site = tidegate_harness::Site::new("top");
    let mut daemon = site.start(&site.config()).ready();
    site.client.publish_all((0..3).map(|n| site.push("shop", "1").id(&n.to_string()).delay(600_000)));
    let top = format!("{} top --interval 100ms --config {}", program(), daemon.config_file().display());
    // Ended by key, by Ctrl-C and by signal.
    for (keys, name) in [(&b"q"[..], "q"), (b"\x03", "ctrl-c"), (b"", "term")] {
        let dir = tidegate_harness::workdir(name);
        let line = format!("sh -c 'echo $$ >pid; exec {top}'");
        let (program, mut pipe) = on_a_terminal(&dir, &line);
        program.wait_for("  running");
        program.wait_for("shop");
        if keys.is_empty() {
            let pid = fs::read_to_string(dir.join("pid")).expect("its id");
            assert!(Command::new("kill").arg(pid.trim()).status().expect("kill runs").success());
        } else {
            pipe.write_all(keys).expect("the key is pressed");
        }
        program.wait_for("ended ");
        let said = program.end();
        assert!(said.contains("ended 0") && said.contains("restored"), "{name}: {said:?}");
        let (enters, leaves) =
            (said.find(ENTERS).expect("it enters"), said.rfind(LEAVES).expect("it leaves"));
        assert!(enters < leaves && leaves < said.find("ended 0").expect("its end"), "{name}: {said:?}");
    }
    let dir = tidegate_harness::workdir("away");
    let (program, mut pipe) = on_a_terminal(&dir, &top);
    program.wait_for("shop");
    daemon.kill9();
    program.wait_for("NO ANSWER");
    pipe.write_all(b"\x1b").expect("the key is pressed");
    program.wait_for("ended 0");
    assert!(program.end().contains("restored"));
    let told = daemon.cli(&["top"]);
    assert!(told.code == 2 && told.err.contains("tidegate status"), "{told:?}");
}

/// It reads no configuration and asks no daemon for that.
#[cfg(not(feature = "top"))]
#[test]
fn a_build_without_it_says_how_to_get_it() {
    let told = Command::new(program()).args(["top", "--config", "/none"]).output().expect("the binary");
    let said = String::from_utf8(told.stderr).expect("UTF-8");
    assert_eq!((told.status.code(), told.stdout.len()), (Some(2), 0), "{said}");
    assert!(said.contains("cargo build --release --features top"), "{said}");
}

#[test]
fn help_is_coloured_unless_the_user_does_not_want_it() {
    if !require("script") || !require("mkfifo") {
        return;
    }
    for (variable, coloured) in [("", true), ("NO_COLOR=1 ", false)] {
        let dir = tidegate_harness::workdir("colour");
        let (program, _keys) = on_a_terminal(&dir, &format!("{variable}{} --help", program()));
        program.wait_for("ended 0");
        let said = program.end();
        assert!(said.contains("NO_COLOR:"), "{said}");
        assert_eq!(said.contains("\u{1b}["), coloured, "{said:?}");
    }
}
