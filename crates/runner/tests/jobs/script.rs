//! `commands:` in real shells: one shell for all entries, in order, until one fails.

use std::process::Command;
use wire::model::spec::script;

/// Whatever may stand behind `/bin/sh`.
fn shells() -> Vec<Vec<&'static str>> {
    let all = [vec!["/bin/sh"], vec!["dash"], vec!["bash"], vec!["bash", "--posix"], vec!["busybox", "sh"]];
    let is_here = |shell: &Vec<&str>| Command::new(shell[0]).args(&shell[1..]).args(["-c", ":"]).output().is_ok();
    all.into_iter().filter(is_here).collect()
}

fn check(entries: &[&str], said: &str, code: i32) {
    let text = script(&entries.iter().map(|entry| entry.to_string()).collect::<Vec<_>>());
    for shell in shells() {
        let output = Command::new(shell[0]).args(&shell[1..]).args(["-c", &text]).output().unwrap();
        let stdout = String::from_utf8(output.stdout).unwrap();
        assert_eq!((stdout.as_str(), output.status.code()), (said, Some(code)), "{shell:?}: {entries:?}");
    }
}

#[test]
fn the_first_entry_that_fails_ends_it_with_its_code() {
    check(&["false", "echo next"], "", 1);
    check(&["echo one", "(exit 7)", "echo three"], "one\n", 7);
    check(&["echo one", "echo two"], "one\ntwo\n", 0);
    check(&["nothing-of-that-name 2>/dev/null", "echo next"], "", 127);
    // Where `sh -e` would go on.
    check(&["false && true", "echo next"], "", 1);
    check(&["! true", "echo next"], "", 1);
    check(&["if false; then :; else (exit 3); fi", "echo next"], "", 3);
    check(&["f() { false; }; f", "echo next"], "", 1);
    check(&["false | true", "echo next"], "next\n", 0);
    check(&["false || true", "echo next"], "next\n", 0);
    check(&["false\necho in the same entry", "echo next"], "in the same entry\nnext\n", 0);
}

#[test]
fn entries_share_one_shell() {
    check(&["cd /; A=1; export B=2", "pwd; echo $A; sh -c 'echo $B'"], "/\n1\n2\n", 0);
    check(&["f() { echo \"f $1\"; }", "f x"], "f x\n", 0);
    check(&["trap 'echo bye' EXIT", "echo hello", "exit 5", "echo never"], "hello\nbye\n", 5);
    check(&["exit 0", "echo never"], "", 0);
    check(&["set -- a b", "echo \"$# $1\""], "2 a\n", 0);
    check(&["echo $#"], "0\n", 0);
    check(&["set -e", "f() { false; echo after; }\nf", "echo never"], "", 1);
    check(&["exec echo instead", "echo never"], "instead\n", 0);
}

#[test]
fn an_entry_means_the_same_whatever_follows_it() {
    check(&["echo it\\'s 'quoted' \"twice\" # and more", "echo two"], "it's quoted twice\ntwo\n", 0);
    check(&["cat <<E\nhere $((1+1))\nE", "echo two"], "here 2\ntwo\n", 0);
    check(&["cat <<'E'\n$here\n'quoted'\nE\n", "echo two"], "$here\n'quoted'\ntwo\n", 0);
    check(&["echo one \\", "echo two"], "one\ntwo\n", 0);
    check(&["echo one &\nwait", "", "   ", "# nothing", "echo two"], "one\ntwo\n", 0);
    check(&["for i in 1 2; do\n  echo $i\ndone", "echo $i"], "1\n2\n2\n", 0);
    check(&["case x in x) echo x;; esac", "echo y"], "x\ny\n", 0);
}

#[test]
fn a_syntax_error_is_that_entrys_own() {
    for broken in ["if", "echo 'open", "echo \"open", "fi", "(", "for"] {
        let entries = ["echo before", broken, "echo never"].map(str::to_owned);
        for shell in shells() {
            let output = Command::new(shell[0]).args(&shell[1..]).args(["-c", &script(&entries)]).output().unwrap();
            assert_eq!(String::from_utf8_lossy(&output.stdout), "before\n", "{shell:?}: {broken}");
            assert_ne!(output.status.code(), Some(0), "{shell:?}: {broken}");
        }
    }
}
