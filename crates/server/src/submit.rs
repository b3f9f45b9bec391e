//! A submission as it came over the wire becomes a specification with every default filled in; what cannot be read is refused by field.

use engine::EngineContext;
use engine::content::BlobHash;
use engine::durable::Begin;
use engine::run::Submission;
use model::offer::Asked;
use model::spec::{
    Cache, CallPart, Command, DEFAULT_MAX_DURATION_MS, DEFAULT_STOP_DURATION_MS, FailureMode, Gpu, Network, Priority,
    Resources, Retry, RetryEvent, RunKind, RunSpec, Sandbox, StdinRef,
};
use model::tree::TreeRef;
use model::{Credits, OrgId, Refused};
use std::str::FromStr;
use wire::api::{CacheBody, SandboxBody, Submit};

/// Three machines are tried at most, so that a longer list is a slip.
pub const MAX_PROVIDERS: usize = 16;

pub(crate) fn is_of_agents(body: &Submit) -> bool {
    body.kind.as_deref() == Some(RunKind::Agents.as_str())
}

/// `org_name` matters only where a provider is not for every org.
pub(crate) fn submission(
    state: &EngineContext,
    (org, org_name): (OrgId, &str),
    body: Submit,
) -> Result<Submission, Refused> {
    if body.plan.is_some() {
        return Err(Refused::invalid("plan", "only a run of `type: agents` has one"));
    }
    let resources = resources(&body)?;
    let providers = providers(&body)?;
    for name in &body.unasked {
        if state.provider(name)?.capabilities().bills {
            return Err(Refused::Unasked { provider: name.clone() });
        }
    }
    let (region, spot) = (body.region.as_deref(), body.spot);
    let sandboxed = body.sandbox.as_ref().map(sandbox).transpose()?;
    let wants_sandbox = sandboxed.as_ref().is_some_and(Option::is_some);
    let (sandbox, platform) = (wants_sandbox, None);
    let asked = Asked { org: org_name, resources: &resources, sandbox, platform, region, spot, providers: &providers };
    let first = state.place_of(&asked)?.offers.swap_remove(0);
    let provider = state.provider(&first.provider)?;
    let capabilities = provider.capabilities();
    let kind = word("type", body.kind.as_deref(), RunKind::Task)?;
    let spec = RunSpec {
        kind,
        command: if kind == RunKind::External { no_command(&body)? } else { command(&body)? },
        env: body.env,
        secrets: body.secrets,
        files: body.files.map(|files| TreeRef { hash: files.tree, files: files.files, bytes: files.bytes }),
        stdin: body.stdin.map(|stdin| StdinRef { hash: stdin.hash, size: stdin.size }),
        working_dir: body.working_dir,
        resources,
        provider: first.provider,
        region: first.region,
        any_region: body.region.is_none(),
        providers,
        spot,
        max_duration_ms: body.max_duration_ms.or(Some(DEFAULT_MAX_DURATION_MS)),
        stop_duration_ms: body.stop_duration_ms.unwrap_or(DEFAULT_STOP_DURATION_MS),
        hold_ms: body.hold_ms,
        budget: body
            .budget
            .map(|text| text.parse::<Credits>())
            .transpose()
            .map_err(|e| Refused::invalid("budget", e.to_string()))?,
        retry: body.retry.map(retry).transpose()?,
        priority: word("priority", body.priority.as_deref(), Priority::Normal)?,
        artifacts: body.artifacts,
        merge: body.merge,
        sandbox: match sandboxed {
            Some(sandbox) => sandbox,
            None if kind == RunKind::External => None,
            None => provider.default_sandbox(),
        },
        on_lost_control: word(
            "on_lost_control",
            body.on_lost_control.as_deref(),
            capabilities.default_on_lost_control,
        )?,
        failure_mode: FailureMode::FailFast,
        plan: Default::default(),
        nodes: 1,
        init_checksum: body.init.as_ref().map(|script| BlobHash::of(script.as_bytes()).to_string()),
        init: body.init,
        features: body.features,
        base: None,
        save_snapshot: body.save_snapshot,
        call: body.cache.and_then(cache).map(CallPart::Caller),
    };
    spec.check()?;
    spec.artifacts.iter().try_for_each(|glob| check_glob(glob))?;
    Ok(Submission { org, by: None, name: body.name, spec, plans: Default::default(), start: body.start })
}

/// The step that a run of `type: external` begins with.
pub(crate) fn first_step(body: &Submit, waits: bool) -> Result<Option<Begin>, Refused> {
    let Some(step) = &body.step else { return Ok(None) };
    if waits || step.wait_ms.is_some() {
        let why =
            "the first step begins at once: its answer does not wait for the end of the run, nor for anything else";
        return Err(Refused::invalid(if waits { "wait" } else { "step.wait_ms" }, why));
    }
    crate::step::wanted(step).map(Some)
}

fn resources(body: &Submit) -> Result<Resources, Refused> {
    let asked = &body.resources;
    let gpu = asked.gpu.as_deref().map(Gpu::parse).transpose().map_err(|why| Refused::invalid("gpu", why))?;
    Ok(Resources { cpu_milli: asked.cpu_milli, memory_bytes: asked.memory_bytes, gpu, disk_bytes: asked.disk_bytes })
}

/// The providers that the request names; empty if it names none.
fn providers(body: &Submit) -> Result<Vec<String>, Refused> {
    if body.provider.is_some() && !body.providers.is_empty() {
        return Err(Refused::invalid("providers", "give either provider or providers, not both"));
    }
    if body.providers.len() > MAX_PROVIDERS {
        return Err(Refused::invalid("providers", format!("more than {MAX_PROVIDERS}")));
    }
    Ok(body.provider.iter().chain(&body.providers).cloned().collect())
}

/// The runner reads patterns in the same way when the command has ended, which is too late to learn that one is malformed.
fn check_glob(glob: &str) -> Result<(), Refused> {
    let built = globset::GlobBuilder::new(glob).literal_separator(true).build();
    built
        .map(drop)
        .map_err(|error| Refused::invalid("artifacts", format!("`{glob}` is not a pattern: {}", error.kind())))
}

/// A program elsewhere does what is done.
fn no_command(body: &Submit) -> Result<Command, Refused> {
    let none = body.commands.is_empty() && body.argv.is_empty();
    let why = "a run of `type: external` has no machine: your own program begins its steps";
    if none { Ok(Command::Argv(Vec::new())) } else { Err(Refused::invalid("commands", why)) }
}

fn command(body: &Submit) -> Result<Command, Refused> {
    match (body.commands.is_empty(), body.argv.is_empty()) {
        (false, true) => Ok(match body.commands.as_slice() {
            [only] => Command::Shell(only.clone()),
            several => Command::Script(several.to_vec()),
        }),
        (true, false) => Ok(Command::Argv(body.argv.clone())),
        (true, true) => Err(Refused::invalid("commands", "a command is needed: commands or argv")),
        (false, false) => Err(Refused::invalid("argv", "give either commands or argv, not both")),
    }
}

fn sandbox(asked: &SandboxBody) -> Result<Option<Sandbox>, Refused> {
    match asked {
        SandboxBody::Flag(asked) => Ok(asked.then_some(Sandbox::DEFAULT)),
        SandboxBody::Terms(terms) => {
            let network = word("sandbox.network", Some(&terms.network), Network::Host)?;
            Ok(Some(Sandbox { network, ..Sandbox::DEFAULT }))
        }
    }
}

fn cache(asked: CacheBody) -> Option<Cache> {
    match asked {
        CacheBody::Flag(asked) => asked.then(Cache::default),
        CacheBody::Terms(terms) => Some(Cache { salt: terms.salt, errors: terms.errors }),
    }
}

fn retry(body: wire::api::RetryBody) -> Result<Retry, Refused> {
    let on_events = body
        .on_events
        .iter()
        .map(|text| RetryEvent::from_str(text).map_err(|e| Refused::invalid("retry.on_events", e.to_string())))
        .collect::<Result<_, _>>()?;
    Ok(Retry { max_attempts: body.max_attempts, on_events, duration_ms: body.duration_ms, delay_ms: body.delay_ms })
}

fn word<W: FromStr<Err = model::string_enum::UnknownWord>>(
    field: &str,
    text: Option<&str>,
    default: W,
) -> Result<W, Refused> {
    text.map_or(Ok(default), |text| {
        text.parse().map_err(|e: model::string_enum::UnknownWord| Refused::invalid(field, e.to_string()))
    })
}

#[cfg(test)]
mod tests {
    use crate::hostile::World;
    use axum::http::StatusCode;
    use serde_json::json;

    #[tokio::test]
    async fn a_plan_is_kept_under_no_key() {
        let world = World::new(true).await;
        let key = [("idempotency-key", "one")];
        let ask = |body: serde_json::Value| {
            let (world, body) = (&world, body.to_string());
            async move { world.ask("post", "/api/v1/runs", Some(&world.admin), &key, &body).await }
        };
        let plan = json!({ "commands": ["true"], "dry_run": true, "start": true });
        for _ in 0..2 {
            let got = ask(plan.clone()).await;
            assert_eq!((got.status, &got.body["dry_run"]), (StatusCode::OK, &true.into()), "{}", got.body);
            assert!(!got.headers.contains_key("idempotent-replayed"));
            assert_eq!(
                (&got.body["placement"], &got.body["pool"]["max_instances"]),
                (&"start_machine".into(), &1.into())
            );
        }
        let got = ask(json!({ "commands": ["true"], "start": true })).await;
        assert_eq!(got.status, StatusCode::CREATED, "{}", got.body);
    }

    #[tokio::test]
    async fn what_needs_a_sandbox_is_refused_where_none_can_be_made() {
        let world = World::new(true).await;
        let plan = |sandbox: &str| {
            json!({ "type": "agents", "start": true, "plan": { "type": "agents", "sandbox": sandbox,
                "tools": { "sh": { "command": ["sh"] } },
                "agents": [{ "name": "a", "tasks": [{ "steps": [{ "llm": { "prompt": "p", "tools": ["sh"] } }] }] }] } })
        };
        let mut by_default = plan("off");
        by_default["plan"]["sandbox"] = serde_json::Value::Null;
        let terms = json!({ "commands": ["true"], "sandbox": { "network": "none" }, "start": true });
        for body in [json!({ "commands": ["true"], "sandbox": true, "dry_run": true }), terms, by_default] {
            let got = world.submit(&world.admin, body.clone()).await;
            assert_eq!(got.status, StatusCode::UNPROCESSABLE_ENTITY, "{body}: {}", got.body);
            assert_eq!(got.body["code"], "no_sandbox");
            assert!(got.body["fix"].as_str().unwrap().starts_with("install bubblewrap"), "{}", got.body);
        }
        for body in [json!({ "commands": ["true"], "sandbox": false, "start": true }), plan("off")] {
            let got = world.submit(&world.admin, body.clone()).await;
            assert_eq!(got.status, StatusCode::CREATED, "{body}: {}", got.body);
        }
        for sandbox in [json!("yes"), json!({ "network": "lan" }), json!({}), json!({ "network": "none", "x": 1 })] {
            let body = json!({ "commands": ["true"], "sandbox": sandbox, "start": true });
            let got = world.submit(&world.admin, body.clone()).await;
            assert_eq!(got.status, StatusCode::BAD_REQUEST, "{body}: {}", got.body);
            assert!(got.body["detail"].as_str().unwrap().contains("sandbox"), "{}", got.body);
        }
    }

    #[tokio::test]
    async fn what_bills_is_refused_if_only_a_file_of_somebody_else_names_it() {
        use engine::adapters::fake::{FakeProvider, FakeSettings, Fate};
        let world = World::new(true).await;
        let mut settings = FakeSettings { name: "paid".into(), ..FakeSettings::default() };
        settings.capabilities.bills = true;
        let paid = FakeProvider::new(settings, Box::new(|_, _| Fate::Obey));
        world.engine.context.providers.insert("paid".into(), engine::Listing::of(std::sync::Arc::new(paid)));
        for (unasked, status) in [(json!([]), 200), (json!(["paid"]), 400), (json!(["local"]), 200)] {
            let body = json!({ "commands": ["true"], "provider": "paid", "unasked": unasked, "dry_run": true });
            let got = world.submit(&world.admin, body).await;
            assert_eq!(got.status.as_u16(), status, "{unasked}: {}", got.body);
            if status == 400 {
                assert_eq!(
                    (&got.body["code"], &got.body["fix"]),
                    (&json!("provider_not_asked_for"), &json!("if you mean it: --provider paid"))
                );
            }
        }
    }

    #[tokio::test]
    async fn a_dry_run_of_agents_says_which_machines_they_would_get() {
        let world = World::new(true).await;
        let task = json!({ "steps": [{ "name": "make", "command": "make" }] });
        let page = json!({ "steps": [{ "name": "page", "http": { "url": "https://x.example/" } }] });
        let agents = json!([
            { "name": "one", "tasks": [task] },
            { "name": "two", "tasks": [task] },
            { "name": "small", "resources": { "memory": "64MB" }, "tasks": [task] },
            { "name": "none", "tasks": [page] },
        ]);
        let body = json!({ "type": "agents", "plan": { "type": "agents", "agents": agents }, "dry_run": true });
        let got = world.submit(&world.admin, body).await;
        assert_eq!(got.status, StatusCode::OK, "{}", got.body);
        let machines = got.body["machines"].as_array().unwrap();
        let of: Vec<&serde_json::Value> = machines.iter().map(|it| &it["agents"]).collect();
        assert_eq!(of, [&json!(["one", "two"]), &json!(["small"])], "{}", got.body);
        let first = &machines[0];
        assert_eq!((&first["provider"], &first["placement"]), (&json!("local"), &json!("start_machine")));
        assert_eq!((&first["pool"]["max_instances"], &first["warm"]), (&json!(1), &json!(false)));
        assert_eq!(machines[1]["limits"]["memory_bytes"], 64 << 20);
        assert!(first["price_per_hour_micro"].is_i64());
    }

    #[tokio::test]
    async fn what_fits_no_machine_is_unprocessable_and_says_what_does() {
        let world = World::new(true).await;
        let table = [
            (json!({ "cpu_milli": 1_000_000_000 }), "--cpu "),
            (json!({ "memory_bytes": 100_i64 << 40 }), "--memory "),
        ];
        for (resources, most) in table {
            for dry_run in [true, false] {
                let body = json!({ "commands": ["true"], "resources": resources, "dry_run": dry_run, "start": true });
                let got = world.submit(&world.admin, body).await;
                assert_eq!(got.status, StatusCode::UNPROCESSABLE_ENTITY, "{}", got.body);
                assert_eq!(got.body["code"], "does_not_fit");
                let fix = got.body["fix"].as_str().unwrap();
                assert!(fix.starts_with(&format!("ask for at most {most}")), "{fix}");
                assert!(got.body["detail"].as_str().unwrap().contains("the largest machine of local has "));
            }
        }
        let commands = json!({ "name": "t", "steps": [{ "name": "s", "command": "true" }] });
        let agent = json!({ "name": "build", "resources": { "gpu": "h100:9" }, "tasks": [commands] });
        let table = [
            (json!({ "commands": ["true"], "resources": { "gpu": "h100:9" } }), "", "leave out --gpu"),
            (
                json!({ "type": "agents", "plan": { "type": "agents", "agents": [agent] } }),
                "agents.build: ",
                "leave out its `gpu`",
            ),
        ];
        for (mut body, at, less) in table {
            body["start"] = true.into();
            let got = world.submit(&world.admin, body).await;
            assert_eq!((got.status.as_u16(), got.body["code"].as_str()), (422, Some("does_not_fit")), "{}", got.body);
            let detail = format!("{at}asked for 9 × h100, and local has no such machine: it has no GPUs");
            assert_eq!(got.body["detail"], detail);
            assert_eq!(got.body["fix"], format!("{less}, or add a provider that has it (repl provider add)"));
        }
        let runs = world.ask("get", "/api/v1/runs?all=true", Some(&world.admin), &[], "").await;
        assert_eq!(runs.body["data"], json!([]), "nothing was created");
    }
}
