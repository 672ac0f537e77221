//! The Debian package from `make deb`: its contents, and the effects of its scripts. Installing it would need
//! a separate machine; these checks do not.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use tidegate_harness::{binary, skip, workdir};

/// The unpacked package: its files in one folder, its scripts in another.
struct Package {
    files: PathBuf,
    control: PathBuf,
}

impl Package {
    /// `None` outside of `make deb`, which names the package; the test is then reported as skipped.
    fn open(test: &str) -> Option<Package> {
        let Some(package) = std::env::var_os("TIDEGATE_DEB").filter(|path| !path.is_empty()) else {
            skip("looks at a package, and make deb has this run once it has made one");
            return None;
        };
        let dir = workdir(test);
        let parts = Package { files: dir.join("files"), control: dir.join("control") };
        for (verb, to) in [("--extract", &parts.files), ("--control", &parts.control)] {
            let done = Command::new("dpkg-deb").arg(verb).arg(&package).arg(to).status();
            assert!(done.is_ok_and(|status| status.success()), "dpkg-deb {verb}");
        }
        Some(parts)
    }

    fn file(&self, path: &str) -> String {
        let path = self.files.join(path);
        fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
    }

    fn script(&self, name: &str) -> String {
        let path = self.control.join(name);
        fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
    }

    /// Names of the files in a folder.
    fn names(&self, folder: &str) -> BTreeSet<String> {
        let entries = fs::read_dir(self.files.join(folder)).unwrap_or_else(|e| panic!("{folder}: {e}"));
        entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned()).collect()
    }
}

fn source(path: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).expect(path)
}

#[test]
fn everything_lies_where_it_is_looked_for() {
    let Some(package) = Package::open("deb-files") else { return };
    assert_eq!(package.file("etc/tidegate/config.toml"), source("config.example.toml"), "run make deb again");
    assert_eq!(package.script("conffiles").trim(), "/etc/tidegate/config.toml");
    let unit = ["usr/lib/systemd/system", "lib/systemd/system"]
        .into_iter()
        .find(|folder| package.files.join(folder).is_dir())
        .expect("a folder of units");
    assert_eq!(package.names(unit), ["tidegate.service".to_owned()].into());
    assert_eq!(package.file(&format!("{unit}/tidegate.service")), source("systemd/tidegate.service"));

    // The unit reloads with /bin/kill, which a minimal system lacks.
    let depends = package.script("control");
    let depends = depends.lines().find(|line| line.starts_with("Depends:")).expect("what it needs");
    assert!(depends.contains("libc6") && depends.contains("procps"), "{depends}");

    let shipped = package.files.join("usr/bin/tidegate");
    let told = |program: &Path, word: &str| {
        let output = Command::new(program).arg(word).output().expect("the program");
        assert!(output.status.success(), "{word}: {output:?}");
        String::from_utf8(output.stdout).expect("UTF-8")
    };
    assert_eq!(told(&shipped, "--version"), told(&binary(), "--version"));

    // A page for each command, as the binary generates them.
    let dir = workdir("deb-man");
    let made = Command::new(&shipped).args(["man", "--directory"]).arg(&dir).status().expect("the pages");
    assert!(made.success());
    let pages = fs::read_dir(&dir).expect("the pages").flatten().map(|page| page.file_name());
    let pages: BTreeSet<String> = pages.map(|name| format!("{}.gz", name.to_string_lossy())).collect();
    assert!(pages.contains("tidegate-run.1.gz") && pages.len() > 10, "{pages:?}");
    assert_eq!(package.names("usr/share/man/man1"), pages);
    for (path, word) in [
        ("usr/share/bash-completion/completions/tidegate", "complete"),
        ("usr/share/zsh/vendor-completions/_tidegate", "#compdef tidegate"),
        ("usr/share/fish/vendor_completions.d/tidegate.fish", "complete"),
    ] {
        assert!(package.file(path).contains(word), "{path}");
    }
    let examples = package.names("usr/share/doc/tidegate/examples");
    for name in ["admin-socket.conf", "credentials.conf", "alerts.yml", "tidegate.json"] {
        assert!(examples.iter().any(|example| example.trim_end_matches(".gz") == name), "{examples:?}");
    }
}

#[test]
fn its_scripts_start_restart_and_stop_and_only_a_purge_takes_the_store() {
    let Some(package) = Package::open("deb-scripts") else { return };
    for name in ["postinst", "prerm", "postrm"] {
        let script = package.script(name);
        assert!(!script.contains("#DEBHELPER#"), "{name} was not completed");
        let judged = Command::new("sh").arg("-n").arg(package.control.join(name)).status();
        assert!(judged.is_ok_and(|status| status.success()), "{name} is no shell script");
    }
    let postinst = package.script("postinst");
    assert!(
        postinst.contains("enable 'tidegate.service'") || postinst.contains("enable tidegate.service"),
        "{postinst}"
    );
    assert!(postinst.contains("deb-systemd-invoke") && postinst.contains("restart"), "{postinst}");
    let prerm = package.script("prerm");
    assert!(
        prerm.contains("stop") && prerm.contains("remove"),
        "an upgrade restarts, and does not stop: {prerm}"
    );
    let postrm = package.script("postrm");
    let (before, _) = postrm.split_once("rm -rf /var/lib/private/tidegate").expect("the store");
    assert!(before.contains("[ \"$1\" = purge ]"), "{postrm}");
    assert_eq!(postrm.matches("rm -rf").count(), 1, "{postrm}");
}
