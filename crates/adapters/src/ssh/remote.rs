//! What `repl runner host` does on a host: one question as JSON on stdin, one answer on stdout. Machines there are those of the local
//! provider, in a folder of this host's own, so starting, finding and ending them is its code.

use super::place::Place;
use crate::local::{LocalProvider, LocalSettings};
use crate::provider::{Handle, ListAsk, Listed, ListedPage, Order, Provider, Seen};
use model::boot::Boot;
use model::host::HostFacts;
use model::spec::Resources;
use model::{Effect, Trouble, TroubleKind, names};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::io::{self, Read, Write};
use std::net::ToSocketAddrs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Begins the line of an answer: a login shell may have written something before it.
pub const ANSWER: &str = "repl-answer ";
/// A boot file with its certificates is the largest question.
const LARGEST_QUESTION: u64 = 4 << 20;
/// How long the control plane may take to accept a connection from the host.
const REACHED_WITHIN: Duration = Duration::from_secs(3);

/// A question about one host.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Ask {
    /// The host's own folder below each control plane's; see `Target::folder`.
    pub host: String,
    /// See `Target::mark`.
    pub mark: String,
    /// In place of `~/.repl`.
    pub dir: Option<PathBuf>,
    /// Machines at once.
    pub slots: i64,
    pub deed: Deed,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Deed {
    Spawn {
        boot: Box<Boot>,
        resources: Resources,
    },
    Find {
        name: String,
    },
    Inspect {
        name: String,
        nonce: String,
    },
    Terminate {
        name: String,
        nonce: String,
    },
    List {
        prefix: String,
        after: Option<String>,
        limit: usize,
    },
    RemoveWorkdir {
        name: String,
        workdir: String,
    },
    Forget {
        name: String,
    },
    /// The runner of this machine needs a way to the control plane.
    Relay {
        name: String,
    },
    /// What this host has, and whether a machine could be made here and reach the control plane.
    Look {
        control_id: String,
        control_url: String,
    },
    /// Nothing of this control plane stays behind, unless a machine needs it.
    Leave {
        control_id: String,
    },
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HostAnswer {
    Done(Value),
    Failed { kind: TroubleKind, what: String, retry: bool, effect: Effect },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Looked {
    Alive,
    RunnerGone,
    Gone,
    Stranger,
}

impl Looked {
    pub fn seen(self) -> Seen {
        match self {
            Looked::Alive => Seen::Alive,
            Looked::RunnerGone => Seen::RunnerGone,
            Looked::Gone => Seen::Gone,
            Looked::Stranger => Seen::Stranger,
        }
    }

    fn of(seen: Seen) -> Looked {
        match seen {
            // A process on a host never waits to be started.
            Seen::Alive | Seen::Queued { .. } => Looked::Alive,
            Seen::RunnerGone => Looked::RunnerGone,
            Seen::Gone => Looked::Gone,
            Seen::Stranger => Looked::Stranger,
        }
    }
}

/// Whether commands on this host can have a sandbox; otherwise why not.
pub type CanSandbox = fn() -> Result<(), String>;

/// Answers one question. `exe` is this program's own path, from which runners are started.
pub fn answer(exe: &Path, can_sandbox: CanSandbox, from: impl Read, mut to: impl Write) -> io::Result<()> {
    let mut text = Vec::new();
    from.take(LARGEST_QUESTION).read_to_end(&mut text)?;
    let ask: Ask = serde_json::from_slice(&text)?;
    // What is made here other users cannot read.
    nix::sys::stat::umask(nix::sys::stat::Mode::from_bits_truncate(0o077));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    say(&runtime.block_on(act(exe, can_sandbox, ask)), &mut to)
}

pub fn say(answer: &Result<Value, Trouble>, to: &mut impl Write) -> io::Result<()> {
    let answer = match answer {
        Ok(value) => HostAnswer::Done(value.clone()),
        Err(trouble) => {
            let Trouble { kind, what, retry, effect, .. } = trouble.clone();
            HostAnswer::Failed { kind, what, retry, effect }
        }
    };
    writeln!(to, "\n{ANSWER}{}", serde_json::to_string(&answer)?)?;
    to.flush()
}

/// What a host has answered, whatever its shell wrote around it.
pub fn heard(output: &[u8]) -> Option<Result<Value, Trouble>> {
    let text = String::from_utf8_lossy(output);
    let line = text.lines().find_map(|line| line.strip_prefix(ANSWER))?;
    Some(match serde_json::from_str(line).ok()? {
        HostAnswer::Done(value) => Ok(value),
        HostAnswer::Failed { kind, what, retry, effect } => Err(Trouble { retry, effect, ..Trouble::new(kind, what) }),
    })
}

async fn act(exe: &Path, can_sandbox: CanSandbox, ask: Ask) -> Result<Value, Trouble> {
    let place = Place::open(&ask)?;
    let local = |name: &str| place.root_of(name).map(|root| provider(root, exe, ask.slots));
    let none = |()| Value::Null;
    match ask.deed.clone() {
        Deed::Spawn { boot, resources } => {
            let local = local(&boot.name)?;
            let fits = local.capabilities().largest;
            // Which GPUs it gets was chosen by who knows of all machines here.
            if !fits.satisfies(&Resources { gpu: None, ..resources.clone() }) {
                let what =
                    format!("this host has {fits}, and {resources} are asked for: ask for less, or for another host");
                return Err(Trouble::new(TroubleKind::InvalidSpec, what));
            }
            place.sign(&boot.name)?;
            let local = local.started_by(super::login::outlives().await?);
            let boot = Boot {
                control_url: way_back(&place, &boot.name, &boot.control_url)?,
                cpu_milli: fits.cpu_milli,
                memory_bytes: fits.memory_bytes,
                ..*boot
            };
            let order = Order::new(boot, "", resources);
            Ok(local.spawn(&order).await?.0.into())
        }
        Deed::Find { name } => Ok(local(&name)?.find_by_name(&name).await?.is_some().into()),
        Deed::Inspect { name, nonce } => {
            let local = local(&name)?;
            place.check(&name)?;
            let seen = local.inspect(&Handle(name), &nonce).await?;
            Ok(serde_json::to_value(Looked::of(seen)).expect("a word"))
        }
        Deed::Terminate { name, nonce } => {
            let local = local(&name)?;
            place.check(&name)?;
            local.terminate(&Handle(name.clone()), &nonce).await?;
            place.end_relay(&name).map(none)
        }
        Deed::List { prefix, after, limit } => list(&place, exe, &prefix, after, limit).await,
        Deed::RemoveWorkdir { name, workdir } => {
            place.check(&name)?;
            local(&name)?.remove_workdir(&Handle(name), &workdir).await.map(none)
        }
        Deed::Forget { name } => {
            let local = local(&name)?;
            local.forget(&Handle(name.clone())).await?;
            place.end_relay(&name)?;
            place.tidy_after(&name);
            Ok(Value::Null)
        }
        Deed::Relay { name } => local(&name).map(|_| Value::Null),
        Deed::Look { control_id, control_url } => {
            let boot_url = way_back(&place, &format!("{}-{control_id}-none-1", names::PREFIX), &control_url)?;
            place.try_out(&control_id, !boot_url.contains("://"))?;
            super::login::outlives().await?;
            let facts = HostFacts { no_sandbox: can_sandbox().err(), ..crate::local::facts().await };
            Ok(serde_json::to_value(facts).expect("plain data"))
        }
        Deed::Leave { control_id } => place.leave(&control_id).map(none),
    }
}

/// Machines of this folder. How many there may be counts only where one is started.
fn provider(root: PathBuf, exe: &Path, slots: i64) -> LocalProvider {
    LocalProvider::new(LocalSettings { max_instances: slots, ..LocalSettings::new(root, exe) })
}

/// Of all control planes that use this host by this name, in the order of names.
async fn list(place: &Place, exe: &Path, prefix: &str, after: Option<String>, limit: usize) -> Result<Value, Trouble> {
    let mut page = ListedPage::default();
    for root in place.roots()? {
        let ask = ListAsk { prefix: prefix.to_owned(), region: None, after: after.clone(), limit };
        let found = provider(root, exe, 1).list(&ask).await?;
        page.next = page.next.or(found.next);
        page.listed.extend(found.listed);
    }
    page.listed.sort_by(|a, b| a.name.cmp(&b.name));
    let more = page.listed.len() > limit || page.next.is_some();
    page.listed.truncate(limit);
    page.next = page.listed.last().filter(|_| more).map(|last| last.name.clone());
    let listed: Vec<Listed> = page.listed;
    Ok(serde_json::json!({ "listed": listed, "next": page.next }))
}

/// The control plane's public address if a connection comes about from here; else the socket of a relay.
fn way_back(place: &Place, name: &str, control_url: &str) -> Result<String, Trouble> {
    if control_url.contains("://") && reaches(control_url) {
        return Ok(control_url.to_owned());
    }
    place.relay_socket(name).map(|socket| format!("unix:{}", socket.display()))
}

fn reaches(url: &str) -> bool {
    let Ok(url) = url::Url::parse(url) else { return false };
    let Some((host, port)) = url.host_str().zip(url.port_or_known_default()) else { return false };
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let Ok(addresses) = (host, port).to_socket_addrs() else { return false };
    addresses.take(4).any(|address| std::net::TcpStream::connect_timeout(&address, REACHED_WITHIN).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_found_among_what_a_shell_says() {
        let mut said = b"welcome to box\nno newline".to_vec();
        say(&Ok(Value::from(7)), &mut said).unwrap();
        said.extend(b"goodbye\n");
        assert_eq!(heard(&said), Some(Ok(Value::from(7))));
        let trouble = Trouble::new(TroubleKind::Capacity, "full").perhaps();
        let mut said = Vec::new();
        say(&Err(trouble.clone()), &mut said).unwrap();
        assert_eq!(heard(&said), Some(Err(trouble)));
        assert_eq!(heard(b"command not found"), None);
        assert_eq!(heard(b"repl-answer {"), None);
    }

    #[test]
    fn an_address_is_taken_only_if_it_can_be_reached() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        assert!(reaches(&format!("http://{address}")));
        drop(listener);
        assert!(!reaches(&format!("http://{address}")));
        assert!(!reaches("relay:") && !reaches("http://nowhere.invalid:1"));
    }
}
