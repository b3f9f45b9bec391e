//! The key of a cached run: what changes it, what `why` says about each change, and which ends are pinned.

use calls::cached_run::{
    Artifact, CachedRun, End, FUNCTION, File, LINES, Machine, RunValue, Stream, error_value, is_hit, pinned,
};
use calls::function::Function;
use calls::record::ExecStatus;
use calls::uri::Blob;
use calls::why::differences;
use calls::{Id, Memory, NodeId, Value, json};
use std::collections::BTreeSet;

fn run() -> CachedRun {
    let file = |byte| File { hash: Id([byte; 32]), executable: false };
    CachedRun {
        argv: ["python", "train.py", "--epochs=3"].map(|word| word.as_bytes().to_vec()).into(),
        working_dir: b"".to_vec(),
        files: [(b"train.py".to_vec(), file(1)), (b"data/a.csv".to_vec(), file(2))].into(),
        env: [(b"MODE".to_vec(), b"fast".to_vec()), (b"SEED".to_vec(), b"1".to_vec())].into(),
        secrets: ["HF_TOKEN".to_owned()].into(),
        machine: Machine::Image { digest: "sha256:abc".into() },
        gpu: None,
        nodes: 1,
        init: None,
        stdin: None,
        artifacts: vec!["out/*".into()],
        merge: false,
        salt: String::new(),
        sandbox: None,
    }
}

fn put(memory: &mut Memory, run: &CachedRun) -> NodeId {
    let call = run.call().unwrap();
    assert_eq!(call.inputs.len(), LINES.len(), "one input node per line");
    memory.add(call.records);
    call.node
}

type Edit = fn(&mut CachedRun);

/// Every field, changed, and what is said about it.
const EDITS: &[(Edit, &str)] = &[
    (|run| run.argv[2] = b"--epochs=4".to_vec(), "argument 2: --epochs=3, now --epochs=4"),
    (|run| run.argv.push(b"-v".to_vec()), "argument 3 was added: -v"),
    (|run| drop(run.argv.pop()), "argument 2 was removed: --epochs=3"),
    (|run| run.working_dir = b"src".to_vec(), r#"working_dir: "", now "src""#),
    (|run| run.files.get_mut(&b"train.py"[..]).unwrap().hash = Id([9; 32]), "file train.py was changed"),
    (|run| run.files.get_mut(&b"train.py"[..]).unwrap().executable = true, "file train.py is now executable"),
    (|run| run.files.retain(|path, _| path != b"data/a.csv"), "file data/a.csv was removed"),
    (|run| run.files.extend([(b"b".to_vec(), File { hash: Id([3; 32]), executable: true })]), "file b was added"),
    (|run| drop(run.env.insert(b"SEED".to_vec(), b"2".to_vec())), "variable SEED was changed"),
    (|run| drop(run.env.remove(&b"SEED"[..])), "variable SEED was removed"),
    (|run| drop(run.env.insert(b"NEW".to_vec(), vec![])), "variable NEW was added"),
    (|run| run.secrets.clear(), r#"secrets: {"$set":["HF_TOKEN"]}, now {"$set":[]}"#),
    (
        |run| run.machine = Machine::Image { digest: "sha256:def".into() },
        r#"machine: {"image":"sha256:abc"}, now {"image":"sha256:def"}"#,
    ),
    (|run| run.gpu = Some("H100".into()), r#"gpu: null, now "H100""#),
    (|run| run.nodes = 2, "nodes: 1, now 2"),
    (|run| run.init = Some("abc".into()), r#"init: null, now "abc""#),
    (|run| run.stdin = Some(Id([0; 32])), "stdin: null, now 00000000"),
    (|run| run.artifacts = vec!["out/*".into(), "log".into()], r#"artifacts: ["out/*"], now ["out/*","log"]"#),
    (|run| run.merge = true, "merge: false, now true"),
    (|run| run.salt = "again".into(), r#"salt: "", now "again""#),
    (|run| run.sandbox = Some("none".into()), r#"sandbox: null, now "none""#),
];

#[test]
fn why_names_exactly_what_differs() {
    let mut memory = Memory::default();
    let before = put(&mut memory, &run());
    let mut nodes = BTreeSet::from([before]);
    for (edit, said) in EDITS {
        let mut changed = run();
        edit(&mut changed);
        let after = put(&mut memory, &changed);
        assert!(nodes.insert(after), "{said}: the key is not another one");
        let found = differences(&mut memory, before, after).unwrap();
        let found: Vec<String> = found.iter().map(ToString::to_string).collect();
        assert_eq!(found, [*said]);
    }
    assert_eq!(differences(&mut memory, before, before), Ok(vec![]));
    let mut two = run();
    EDITS[4].0(&mut two);
    EDITS[5].0(&mut two);
    let after = put(&mut memory, &two);
    assert_eq!(differences(&mut memory, before, after).unwrap().len(), 2, "contents and mode bit");
}

#[test]
fn the_same_run_has_the_same_node_for_ever() {
    let call = run().call().unwrap();
    assert_eq!(run().call().unwrap(), call);
    assert_eq!(call.node.to_string(), "278e33b88ef8020f6f3df9b1f33ceb35c831fae96f62a59ea0a018c86de9067f");
    assert!(Function::parse(FUNCTION).is_ok());
    let host = |os: &str| {
        let machine = Machine::Host { provider: "local".into(), architecture: "x86_64".into(), os_release: os.into() };
        CachedRun { machine, ..run() }.call().unwrap().node
    };
    assert_ne!(host("debian 12"), host("debian 13"));
}

#[test]
fn words_that_unicode_would_normalise_stay_as_they_are() {
    let argv = |text: &str| CachedRun { argv: vec![text.as_bytes().to_vec()], ..run() }.call().unwrap().node;
    assert_ne!(argv("e\u{301}"), argv("\u{e9}"));
    let mut raw = run();
    raw.argv = vec![vec![0xff, 0xfe]];
    assert!(raw.call().is_ok(), "bytes that are no text are words, too");
}

#[test]
fn a_run_is_worth_its_exit_code_streams_and_artifacts() {
    let blob = Blob::of(b"weights");
    let value = RunValue {
        exit_code: 0,
        stdout: Stream::of(b"done\n".to_vec()),
        stderr: Stream::of(vec![b'x'; (1 << 20) + 1]),
        artifacts: [(b"out/w".to_vec(), Artifact { blob, mode: 0o644 })].into(),
    };
    let Value::Map(map) = value.value().unwrap() else { panic!("a map") };
    let get = |key: &str| map.get(&Value::text(key).unwrap()).unwrap().clone();
    assert_eq!(map.iter().len(), 4);
    assert_eq!(get("exit_code"), Value::Int(0));
    assert_eq!(get("stdout"), Value::bytes(*b"done\n").unwrap());
    assert!(matches!(get("stderr"), Value::Uri(uri) if uri.blob().unwrap().bytes == (1 << 20) + 1));
    let artifacts = json::to_json(&get("artifacts")).to_string();
    assert!(artifacts.contains(blob.uri().as_str()) && artifacts.contains("\"mode\":420"), "{artifacts}");
    let error = error_value("job_vanished", "the backend does not know the job", "dml-exec-repl", &[]).unwrap();
    let keys = |value: &Value| match value {
        Value::Map(map) => map.iter().map(|(key, _)| json::shown(key)).collect::<BTreeSet<_>>(),
        _ => BTreeSet::new(),
    };
    assert_eq!(keys(&error), [r#""message""#, r#""origin""#, r#""stack""#, r#""type""#].map(String::from).into());
}

#[test]
fn only_what_the_command_itself_decided_is_pinned() {
    let whole = |end| pinned(end, true, true);
    assert_eq!(whole(End::Exited(0)), Some(ExecStatus::Ok));
    assert_eq!(whole(End::Exited(3)), Some(ExecStatus::Error));
    for end in [End::Signalled, End::OutOfMemory, End::TimedOut, End::Cancelled, End::Interrupted] {
        assert_eq!(whole(end), None, "{end:?}");
    }
    assert_eq!(pinned(End::Exited(0), false, true), None, "logs were cut");
    assert_eq!(pinned(End::Exited(0), true, false), None, "artifacts are missing");
    for (status, takes_errors, hit) in
        [(ExecStatus::Ok, false, true), (ExecStatus::Error, false, false), (ExecStatus::Error, true, true)]
    {
        assert_eq!(is_hit(status, takes_errors), hit);
    }
}
