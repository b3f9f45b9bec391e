//! What people are asked about the steps of agents: how they hear of it, look at it and answer it, and what the tree shows meanwhile.

use crate::session::{REDACTED, Session};
use std::io::{BufRead as _, BufReader, Read as _};
use std::net::TcpListener;
use std::process::Child;

/// A service that takes each request and closes the connection: the caller does not know its outcome.
fn hangs_up() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let mut stream = stream;
            let _request = stream.read(&mut [0; 4096]);
        }
    });
    port
}

fn market(session: &Session) {
    let plan = format!(
        "type: agents
name: market
agents:
  - name: office
    tasks:
      - name: letters
        steps:
          - {{name: agree, approval: \"send them?\", output: {{type: object, required: [colour]}}}}
          - {{name: post, http: {{method: POST, url: \"http://127.0.0.1:{}/\"}}}}
          - {{name: rest, wait: 10ms}}
output: {{colour: \"${{{{ agents.office.tasks.letters.steps.agree.output.colour }}}}\"}}
",
        hangs_up()
    );
    std::fs::write(session.here().join("market.repl.yml"), plan).unwrap();
}

/// What the program of `[notify]` was told so far.
fn notified(session: &Session) -> String {
    std::fs::read_to_string(session.here().join("notified")).unwrap_or_default()
}

/// Reads the output of a `repl` that follows a run, up to the line with these words.
fn said(lines: &mut impl Iterator<Item = String>, words: &str) -> String {
    lines.find(|line| line.contains(words)).unwrap_or_else(|| panic!("nothing said `{words}`"))
}

fn stderr(child: &mut Child) -> impl Iterator<Item = String> + use<> {
    BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap)
}

#[test]
fn people_are_asked_told_and_heard() {
    let mut session = Session::new();
    market(&session);
    let settings = session.here().join("../.config/remuda");
    std::fs::create_dir_all(&settings).unwrap();
    let exec = format!("[notify]\nexec = ['tee', '-a', '{}']\n", session.here().join("notified").display());
    std::fs::write(settings.join("config.toml"), exec).unwrap();

    let mut attached = session.begin("exec repl run market.repl.yml");
    let mut lines = stderr(&mut attached);
    let line = said(&mut lines, "waits for an approval");
    let approval = line.rsplit(' ').next().unwrap().to_owned();
    assert_eq!(
        line,
        format!(
            "repl: office/letters/agree waits for an approval: repl approval show {approval}, then repl approval approve {approval}"
        )
    );
    session.type_in("repl status market");
    session.type_in("repl why market");
    session.type_in("repl approval ls");
    session.type_in(&format!("repl approval show {approval}"));
    session.type_in(&format!("repl approval approve {approval} --answer '{{colour'"));
    session.type_in(&format!("repl approval approve {approval} --answer '{{\"size\": 1}}'"));
    session.type_in(&format!("repl approval approve {approval} --input '{{}}'"));
    session.type_in("repl approval approve qst_zzz");
    session.type_in(&format!("repl approval approve {approval} --answer '{{\"colour\": \"green\"}}' --note fine"));
    session.type_in(&format!("repl approval reject {approval}"));

    let line = said(&mut lines, "needs a decision");
    let ticket = line.split(' ').find(|word| word.starts_with("qst_")).unwrap().trim_end_matches(',').to_owned();
    session.wait_for("market", "run.paused");
    session.type_in("repl status market");
    session.type_in("repl why market");
    session.type_in("repl escalation ls");
    session.type_in(&format!("repl escalation show {ticket}"));
    session.type_in(&format!("repl escalation resolve {ticket} explode"));
    session.type_in(&format!("repl escalation resolve {ticket} skip --output 1"));
    session
        .type_in(&format!("repl escalation resolve {ticket} done --output '{{\"status\": 200}}' --note 'it arrived'"));
    assert!(attached.wait().unwrap().success());
    session.type_in("repl status market");
    session.type_in("repl escalation ls -a");
    session.type_in("repl approval ls --run market --all");
    session.shape(&format!("repl approval show {approval} --json"));
    session.shape(&format!("repl escalation show {ticket} --json"));
    session.names("repl status market --json");
    for id in [approval, ticket] {
        assert!(notified(&session).contains(&format!("\"id\":\"{id}\"")), "{}", notified(&session));
    }
    insta::with_settings!({ filters => REDACTED.to_vec(), omit_expression => true, prepend_module_to_snapshot => false }, {
        insta::assert_snapshot!(session.transcript());
    });
}

#[test]
fn a_tree_is_watched_to_its_end_and_logs_are_picked_by_names() {
    let session = Session::new();
    let plan = "type: agents
name: two
agents:
  - name: one
    tasks:
      - {name: make, steps: [{name: say, command: echo from one}]}
  - name: other
    tasks:
      - {name: make, steps: [{name: say, command: echo from other}, {name: more, command: echo more}]}
";
    std::fs::write(session.here().join("two.repl.yml"), plan).unwrap();
    session.quietly("repl run --detach two.repl.yml");
    let seen = session.quietly("repl status two -w");
    let last = seen.trim_end().rsplit("\n\n").next().unwrap();
    assert!(last.contains("two completed") && last.contains("other · completed") && last.contains("└─ more"), "{seen}");
    let watched = session.quietly("repl status two -w --json");
    assert_eq!(watched.lines().count(), 1, "one document for a run that has ended");
    for (flags, words) in [
        ("--agent one", "from one\n"),
        ("--step more", "more\n"),
        ("--agent other --task make --step say", "from other\n"),
        ("--agent other --step say --tail 1", "from other\n"),
        ("--agent one -f", "from one\n"),
    ] {
        assert_eq!(session.quietly(&format!("repl logs two {flags}")), words, "{flags}");
    }
    for (flags, words) in [
        ("--agent nobody", "has no agent `nobody`"),
        ("--task make", "has 2 tasks called `make`"),
        ("--step sya", "did you mean `say`?"),
        ("--step say --tail 1", "2 steps are meant"),
    ] {
        let output = session.shell(&format!("repl logs two {flags}")).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains(words), "{flags}: {said}");
    }
}
