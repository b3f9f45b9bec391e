//! Models, servers and inputs that mean harm: what they say stays data, no address is reached that must not be, and no secret is told.

use crate::api::Api;
use crate::model::{Reply, Script};
use crate::recorder::{self, Recorder};
use crate::scene::Scene;
use serde_json::{Value, json};
use std::io::Write as _;
use std::process::Stdio;

/// What a model would like a shell, a request or a path to make more of.
const TEXTS: &[&str] = &[
    "$(touch HERE/pwned)",
    "`touch HERE/pwned`",
    "; touch HERE/pwned #",
    "\"; touch HERE/pwned; \"",
    "'; touch HERE/pwned; '",
    "a\ntouch HERE/pwned\n",
    "x\r\nX-Evil: 1\r\n\r\nGET /evil HTTP/1.1\r\n",
    "file:///etc/passwd",
    "http://169.254.169.254/latest/meta-data/",
    "//evil.example/x",
    "@evil.example/",
    "?evil=1&a=b#c",
    "%2e%2e%2f..%00",
    "${{ inputs.x }} {{ 7 * 7 }} {% raw %}",
    "ünï \u{202e} \u{0}",
];

#[test]
fn what_a_model_says_stays_an_argument() {
    let call = |tool: &'static str, text: &str| (tool, json!({ "text": text }).to_string());
    let calls =
        |tool: &'static str, texts: &[String]| Reply::Calls(texts.iter().map(|text| call(tool, text)).collect());
    let home = tempfile::tempdir().unwrap();
    let here = home.path().to_str().unwrap();
    let texts: Vec<String> = TEXTS.iter().map(|text| text.replace("HERE", here)).collect();
    let turns = ["query", "path", "header", "body", "program"];
    let mut script: Vec<Vec<Reply>> = turns.iter().map(|tool| vec![calls(tool, &texts)]).collect();
    script.push(vec![Reply::Text("tried")]);
    let scene = Scene::new(Script::from([("attack".to_owned(), script)]), Recorder::start());
    let (run, ended) = scene.run(ATTACK);
    assert_eq!(ended.code, 0, "{ended}");
    assert_eq!(scene.output(&run), "tried");
    let pwned = home.path().join("pwned");
    assert!(!pwned.exists(), "a shell has run what a model said");
    let records = scene.recorder.records();
    for record in &records {
        let at = record.path.split('?').next().unwrap();
        let known =
            ["/query", "/header", "/body"].contains(&at) || at.strip_prefix("/files/").is_some_and(is_one_segment);
        assert!(known && !record.headers.contains_key("x-evil"), "{record:?}");
    }
    // What can be sent was sent as it is.
    let asked: Vec<String> = records
        .iter()
        .filter_map(|record| record.path.strip_prefix("/query?text="))
        .map(|text| decoded(&text.replace('+', " ")))
        .collect();
    let bodies: Vec<String> = records
        .iter()
        .filter(|record| record.path == "/body")
        .map(|record| serde_json::from_str::<Value>(&record.body).unwrap()["text"].as_str().unwrap().to_owned())
        .collect();
    for text in &texts {
        assert!(asked.contains(text) && bodies.contains(text), "{text:?} was changed: {asked:?}, {bodies:?}");
    }
}

fn is_one_segment(text: &str) -> bool {
    !text.contains(['/', '?', '#', '\\'])
}

fn decoded(text: &str) -> String {
    let (mut bytes, mut rest) = (Vec::new(), text.bytes());
    while let Some(byte) = rest.next() {
        match byte {
            b'%' => {
                let digits = [rest.next().unwrap(), rest.next().unwrap()];
                bytes.push(u8::from_str_radix(std::str::from_utf8(&digits).unwrap(), 16).unwrap());
            }
            byte => bytes.push(byte),
        }
    }
    String::from_utf8(bytes).unwrap()
}

const ATTACK: &str = "
type: agents
tools:
  query: {http: {url: \"RECORDER/query\", query: {text: \"${{ args.text }}\"}}, args: {text: {type: string}}}
  path: {http: {url: \"RECORDER/files/${{ args.text }}\"}, args: {text: {type: string}}}
  header: {http: {url: \"RECORDER/header\", headers: {X-Note: \"${{ args.text }}\"}}, args: {text: {type: string}}}
  body: {http: {method: POST, url: \"RECORDER/body\", json: {text: \"${{ args.text }}\"}}, args: {text: {type: string}}, policy: allow}
  program: {command: [printf, \"%s\", \"${{ args.text }}\"], args: {text: {type: string}}, policy: allow}
agents:
- name: a
  tasks:
  - name: t
    steps: [{name: s, llm: {prompt: attack, tools: [query, path, header, body, program]}}]
output: \"${{ agents.a.tasks.t.steps.s.output.text }}\"
";

/// The run's caller may choose a host; which addresses may be reached is still the control plane's matter.
#[test]
fn addresses_that_must_not_be_reached_are_refused() {
    let recorder = Recorder::answering(|record, _| match record.path.as_str() {
        "/to-metadata" => recorder::Reply::Redirect("http://169.254.169.254/latest/meta-data/".to_owned()),
        "/to-file" => recorder::Reply::Redirect("file:///etc/passwd".to_owned()),
        path => match path.strip_prefix("/to-self?at=") {
            Some(url) => recorder::Reply::Redirect(decoded(url)),
            None => recorder::Reply::Json(json!({})),
        },
    });
    // An operator may allow much; never the control plane itself.
    let scene = Scene::with(Script::new(), recorder, "");
    scene.home.configure("listen = \"127.0.0.1:0\"\n[tools]\nallow = [\"127.0.0.0/8\", \"::1\"]\n");
    let own = scene.home.url();
    let port = own.rsplit_once(':').unwrap().1;
    let table = [
        ("http://169.254.169.254/latest/meta-data/".to_owned(), "cloud metadata"),
        ("http://[::ffff:169.254.169.254]/".to_owned(), "cloud metadata"),
        ("http://2852039166/".to_owned(), "cloud metadata"),
        ("http://169.254.1.1/".to_owned(), "link-local"),
        ("file:///etc/passwd".to_owned(), "must begin with http"),
        ("gopher://127.0.0.1/".to_owned(), "must begin with http"),
        ("http://user:pass@127.0.0.1/".to_owned(), "user name or password"),
        (format!("{own}/healthz"), "where this control plane itself listens"),
        (format!("http://localhost:{port}/healthz"), "where this control plane itself listens"),
        (format!("http://0.0.0.0:{port}/healthz"), "where this control plane itself listens"),
        (format!("http://[::ffff:127.0.0.1]:{port}/healthz"), "where this control plane itself listens"),
        (format!("{}/to-self?at={own}/healthz", scene.recorder.url("")), "where this control plane itself listens"),
        (scene.recorder.url("/to-metadata"), "cloud metadata"),
        (scene.recorder.url("/to-file"), "scheme `file`"),
    ];
    for (url, said) in table {
        let file = scene.file("type: agents\ninputs: {url: x}\nagents:\n- tasks:\n  - steps: [{name: s, http: {url: \"${{ inputs.url }}\"}}]\n");
        let ended = scene.home.say(&["run", &file, "--input", &format!("url={url}")]);
        assert_eq!(ended.code, 1, "{url}: {ended}");
        assert!(ended.stderr.contains(said), "{url} should say `{said}`: {ended}");
    }
    // A host that a model or another step decides is refused before anything starts.
    for url in [
        "http://${{ args.host }}/",
        "${{ args.host }}",
        "http://api.${{ args.host }}.example/",
        "http:${{ args.host }}",
    ] {
        let plan = format!(
            "type: agents\ntools: {{t: {{http: {{url: \"{url}\"}}, args: {{host: {{type: string}}}}}}}}\n\
             agents:\n- tasks:\n  - steps: [{{llm: {{prompt: p, tools: [t]}}}}]\n"
        );
        let file = scene.file(&plan);
        scene.home.say(&["run", &file]).refused(2, &[&file, "tools.t.http.url"]);
    }
}

const CANARY: &str = "canary-7Qz9-\"x\"/w+2 ö";
const KEY: &str = "sk-model-canary-81726354";

/// The servers that get secrets repeat them: in answers, in errors, in redirects. The product passes none of it on.
#[test]
fn a_secret_appears_nowhere() {
    let scene = repeating(Scene::new);
    tell_all(&scene, |scene| {
        scene.home.done(&["control", "stop"]);
        Vec::new()
    });
}

/// Its rows are looked at as a dump tells them.
#[test]
fn a_secret_appears_nowhere_on_postgresql_with_two_servers_and_two_workers() {
    let scene = repeating(|script, recorder| Scene::of_many(script, recorder, ""));
    tell_all(&scene, |scene| scene.home.many().dump_database());
}

fn repeating(make: impl FnOnce(Script, Recorder) -> Scene) -> Scene {
    let recorder = Recorder::answering(|record, _| {
        let all = format!("{:?} {}", record.headers, record.headers.get("authorization").cloned().unwrap_or_default());
        match record.path.as_str() {
            "/json" => recorder::Reply::Json(json!({ "headers": record.headers, "all": all })),
            "/elsewhere" => recorder::Reply::Redirect(format!("/echo?secret={}", encoded(&all))),
            "/error" => recorder::Reply::Status(404, Box::leak(all.into_boxed_str())),
            _ => recorder::Reply::Text(all),
        }
    });
    let said = |text: &str| Box::leak(format!("your key is {text}").into_boxed_str()) as &'static str;
    let steal = |tool: &'static str| (tool, json!({ "x": { "secret": "CANARY" }, "y": "CANARY" }).to_string());
    let script = Script::from([
        (
            "tell".to_owned(),
            vec![
                vec![Reply::Status(500, said(KEY)), Reply::Calls(vec![steal("object"), steal("text")])],
                vec![Reply::Text(said(KEY))],
            ],
        ),
        ("fail".to_owned(), vec![vec![Reply::Status(400, said(KEY))]]),
    ]);
    let scene = make(script, recorder);
    let settings = "api_key = \"MODEL_KEY\"\n[llm.default.models.scripted]\ncontext = 16000\n";
    let model = format!("[llm.default]\nbase_url = \"{}\"\n{settings}", scene.model.url());
    scene.home.configure(&format!("[tools]\nallow = [\"127.0.0.1\"]\n{model}"));
    scene
}

/// `ends`: what is asked of the control plane last, and what it answers then.
fn tell_all(scene: &Scene, ends: impl FnOnce(&Scene) -> Vec<u8>) {
    set_secret(scene, "CANARY", CANARY);
    set_secret(scene, "MODEL_KEY", KEY);
    scene.home.write("server.py", include_str!("../../../adapters/tests/tools/mcp_server.py"));
    let (run, ended) = scene.run(TELLING);
    assert_eq!(ended.code, 0, "{ended}");
    let (failed, failure) = scene.run("type: agents\nagents:\n- tasks:\n  - steps: [{llm: {prompt: fail}}]\n");
    assert_eq!(failure.code, 1, "{failure}");
    let sent = |header: &str, text: &str| {
        let by_model = scene.model.asked().into_iter().map(|asked| asked.headers);
        let all = scene.recorder.records().into_iter().map(|record| record.headers).chain(by_model);
        all.filter_map(|headers| headers.get(header).cloned()).filter(|value| value.contains(text)).count()
    };
    assert!(sent("authorization", KEY) > 0 && sent("authorization", CANARY_SENT) > 0, "{:?}", scene.recorder.records());
    let stolen = scene.recorder.records().into_iter().filter(|record| record.path.starts_with("/steal"));
    for record in stolen {
        assert!(!format!("{record:?}").contains("canary"), "a model named a secret and got it: {record:?}");
    }
    let api = Api::of(&scene.home);
    let mut told = vec![ended.to_string(), failure.to_string(), format!("{:?}", api.metrics())];
    for run in [&run, &failed] {
        for words in [&["events", "--json", run][..], &["status", "--json", run], &["why", run], &["logs", run]] {
            told.push(scene.home.say(words).to_string());
        }
        for what in ["steps", "tree", "events", "ledger"] {
            told.push(api.get(&format!("/runs/{run}/{what}")).to_string());
        }
    }
    tells_nothing(&ends(scene), "the database");
    for text in &told {
        tells_nothing(text.as_bytes(), "an answer");
    }
    let mut folders = vec![scene.home.data().to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap().flatten() {
            match entry.file_type().unwrap() {
                kind if kind.is_dir() => folders.push(entry.path()),
                kind if kind.is_file() => {
                    tells_nothing(&std::fs::read(entry.path()).unwrap(), &entry.path().display().to_string())
                }
                _ => {}
            }
        }
    }
}

/// Headers carry bytes; the recorder reads them as text.
const CANARY_SENT: &str = "canary-7Qz9";

fn tells_nothing(bytes: &[u8], place: &str) {
    // As they are, in Base64, and in the digits by which a dump writes bytes.
    let digits = |text: &str| text.bytes().map(|byte| format!("{byte:02x}")).collect::<String>();
    let plain = ["canary-7Qz9", "sk-model-canary", "Y2FuYXJ5LTdRejk", "c2stbW9kZWwtY2FuYXJ5"].map(str::to_owned);
    for needle in plain.into_iter().chain([digits("canary-7Qz9"), digits("sk-model-canary")]) {
        let at = bytes.windows(needle.len()).position(|part| part == needle.as_bytes());
        if let Some(at) = at {
            let around = &bytes[at.saturating_sub(100)..bytes.len().min(at + 100)];
            panic!("{place} tells a secret: {}", String::from_utf8_lossy(around));
        }
    }
}

fn encoded(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

fn set_secret(scene: &Scene, name: &str, value: &str) {
    let mut command = scene.home.repl(&["secret", "set", name]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(value.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success());
}

const TELLING: &str = "
type: agents
files: [server.py]
tools:
  object: {http: {url: \"RECORDER/steal-1\", headers: {X-Note: \"${{ args.x }}\"}}, args: {x: {type: object}, y: {type: string}}}
  text: {http: {method: POST, url: \"RECORDER/steal-2\", json: {headers: {X-Note: \"${{ args.x }}\"}}}, args: {x: {type: object}, y: {type: string}}, policy: allow}
agents:
- name: a
  failure_mode: continue
  tasks:
  - name: t
    failure_mode: continue
    steps:
    - {name: json, http: {url: \"RECORDER/json\", headers: {Authorization: {secret: CANARY, prefix: \"Bearer \"}}}}
    - {name: text, http: {url: \"RECORDER/text\", headers: {Authorization: {secret: CANARY}}}}
    - {name: error, http: {url: \"RECORDER/error\", headers: {Authorization: {secret: CANARY}}}}
    - {name: elsewhere, http: {url: \"RECORDER/elsewhere\", headers: {Authorization: {secret: CANARY}}}}
    - {name: shell, command: \"echo $TOKEN; echo $TOKEN >&2\", env: {TOKEN: {secret: CANARY}}}
    - {name: broken, command: \"echo $TOKEN; exit 3\", env: {TOKEN: {secret: CANARY}}}
    - {name: program, exec: [sh, -c, \"echo $TOKEN\"], env: {TOKEN: {secret: CANARY}}}
    - {name: left, command: [python3, -c, 'import json, os; json.dump([os.environ[\"TOKEN\"]], open(os.environ[\"REPL_OUTPUT\"], \"w\"))'], env: {TOKEN: {secret: CANARY}}}
    - {name: server, mcp: {command: [python3, server.py], tool: env, arguments: {name: TOKEN}}, env: {TOKEN: {secret: CANARY}}}
    - {name: model, llm: {prompt: tell, tools: [object, text]}}
    - {name: steal, http: {method: POST, url: \"RECORDER/steal-3\", json: {body: \"${{ steps.json.output.body }}\"}}, idempotent: true}
output: {json: \"${{ agents.a.tasks.t.steps.json.output }}\", text: \"${{ agents.a.tasks.t.steps.text.output.body }}\", shell: \"${{ agents.a.tasks.t.steps.shell.output }}\", model: \"${{ agents.a.tasks.t.steps.model.output }}\"}
";
