//! The tables of `compare` and `classify`, and what a whitelist entry must say.

use super::*;
use crate::{InstanceId, ManifestId, OrgId, PoolId};

const NOW: Timestamp = Timestamp(10 * HOUR);
const OURS: &str = "v2a1b2c3";

fn listed(name: &str) -> Listed {
    Listed {
        kind: ResourceType::Instance,
        name: name.into(),
        handle: "i-1".into(),
        nonce: Some("n".into()),
        status: ListedStatus::Running,
        instance_type: None,
        region: "here".into(),
        created_at: Some(NOW - HOUR),
        ip: None,
        last_seen: None,
        price_micro: Some(10),
    }
}

fn row(status: InstanceStatus, handle: Option<&str>) -> Instance {
    let name = "repl-v2a1b2c3-9ix-1h2i".to_owned();
    let announced = Instance::announced(InstanceId(68922), OrgId(1), PoolId(2), ManifestId(12345), name, NOW);
    let handle = handle.map(str::to_owned);
    Instance { provider: "fake".into(), nonce: "n".into(), status, handle, ..announced }
}

#[test]
fn a_row_is_the_resources_only_by_its_nonce() {
    use InstanceStatus::{Lost, Ready, Spawning, Terminated, Terminating};
    let there = listed("repl-v2a1b2c3-9ix-1h2i");
    let other_nonce = Listed { nonce: Some("x".into()), ..there.clone() };
    let no_nonce = Listed { nonce: None, ..there.clone() };
    let ended = Listed { status: ListedStatus::Ended, ..there.clone() };
    let second = Listed { handle: "i-2".into(), ..there.clone() };
    let volume = Listed { kind: ResourceType::Volume, ..there.clone() };
    for (listed, row, expected) in [
        (&there, None, Compared::Orphan),
        (&ended, None, Compared::Ended),
        (&there, Some(row(Ready, Some("i-1"))), Compared::Tracked),
        (&there, Some(row(Lost, Some("i-1"))), Compared::Tracked),
        (&no_nonce, Some(row(Ready, Some("i-1"))), Compared::Tracked),
        (&second, Some(row(Ready, Some("i-1"))), Compared::Orphan),
        (&volume, Some(row(Ready, Some("i-1"))), Compared::Orphan),
        (&other_nonce, Some(row(Ready, Some("i-1"))), Compared::Orphan),
        (&there, Some(row(Spawning, None)), Compared::Adopt),
        (&there, Some(row(Terminating, None)), Compared::Adopt),
        (&no_nonce, Some(row(Spawning, None)), Compared::Orphan),
        (&other_nonce, Some(row(Spawning, None)), Compared::Orphan),
        (&there, Some(row(Terminated, None)), Compared::ThereAgain),
        (&there, Some(row(Terminated, Some("i-1"))), Compared::ThereAgain),
        (&no_nonce, Some(row(Terminated, Some("i-1"))), Compared::Orphan),
        (&there, Some(Instance { displaced: true, ..row(Terminated, None) }), Compared::Orphan),
        (&there, Some(Instance { provider: "other".into(), ..row(Ready, Some("i-1")) }), Compared::Orphan),
    ] {
        assert_eq!(compare("fake", listed, row.as_ref()), expected, "{listed:?} {row:?}");
    }
    let machine = Listed { kind: ResourceType::TailscaleMachine, nonce: None, ..listed("repl-v2a1b2c3-1h2i") };
    assert_eq!(compare("fake", &machine, Some(&row(Ready, None))), Compared::Tracked);
    assert_eq!(compare("fake", &machine, Some(&row(Terminated, None))), Compared::Orphan);
}

#[test]
fn each_orphan_has_its_section_and_severity() {
    use OrphanSection as S;
    use OrphanSeverity as V;
    let began = Some(NOW - 2 * HOUR);
    let old = Some(NOW - 3 * HOUR);
    let tailscale = |name| Listed { kind: ResourceType::TailscaleMachine, ..listed(name) };
    for (listed, session, expected) in [
        (listed("repl-v2a1b2c3-9ix-1h2i"), began, (S::CurrentSession, V::Warning)),
        (listed("repl-v2a1b2c3-none-2j3k"), Some(NOW - HOUR), (S::CurrentSession, V::Warning)),
        (Listed { created_at: old, ..listed("repl-v2a1b2c3-none-2j3k") }, began, (S::OtherSessions, V::Info)),
        (Listed { created_at: None, ..listed("repl-v2a1b2c3-none-2j3k") }, began, (S::OtherSessions, V::Info)),
        (listed("repl-v2a1b2c3-9ix-1h2i"), None, (S::OtherSessions, V::Info)),
        (listed("repl-an0ther1-9ix-1h2i"), began, (S::OtherInstallations, V::Info)),
        (tailscale("repl-v2a1b2c3-5p6q"), began, (S::Tailscale, V::Warning)),
        (tailscale("repl-v2a1b2c3-5p6q"), None, (S::Tailscale, V::Info)),
        (tailscale("repl-v2a1b2c3-9ix-5p6q"), began, (S::Unknown, V::Caution)),
        (listed("repl-v2a1b2c3-5p6q"), began, (S::Unknown, V::Caution)),
        (listed("repl-old"), began, (S::Unknown, V::Caution)),
    ] {
        assert_eq!(classify(&listed, OURS, session), expected, "{listed:?}");
    }
}

#[test]
fn a_match_is_as_sure_as_what_it_shares() {
    let row = row(InstanceStatus::Ready, None);
    for (name, expected) in [
        ("repl-v2a1b2c3-9ix-1h2i", Some(100)),
        ("repl-v2a1b2c3-none-1h6i", Some(80)),
        ("repl-v2a1b2c3-9ix-1", Some(50)),
        ("repl-v2a1b2c3-none-1", None),
    ] {
        let inferred = names::parse(name).unwrap();
        let row = if expected == Some(80) {
            Instance { id: InstanceId(inferred.resource), ..row.clone() }
        } else {
            row.clone()
        };
        assert_eq!(confidence(name, &inferred, &row), expected, "{name}");
    }
}

#[test]
fn what_is_young_may_still_get_its_row() {
    let limits = OrphanLimits::default();
    for (created_at, young) in [(Some(NOW - 14 * MINUTE), true), (Some(NOW - 15 * MINUTE), false), (None, false)] {
        assert_eq!(Listed { created_at, ..listed("repl-old") }.is_young(&limits, NOW), young, "{created_at:?}");
    }
}

#[test]
fn an_entry_says_why_and_ends_in_the_time_to_come() {
    let good = Whitelisted {
        provider: "fake".into(),
        provider_id: "i-1".into(),
        kind: ResourceType::Instance,
        reason: "debugging".into(),
        acknowledged_by: "somebody".into(),
        acknowledged_at: NOW,
        expires_at: Some(NOW + 1),
        notes: None,
    };
    good.check(NOW).unwrap();
    assert!(good.holds_at(NOW) && !good.holds_at(NOW + 1));
    for (bad, says) in [
        (Whitelisted { reason: " ".into(), ..good.clone() }, "reason: is required"),
        (Whitelisted { reason: "x".repeat(MAX_REASON + 1), ..good.clone() }, "reason: has more than"),
        (Whitelisted { notes: Some("x".repeat(MAX_NOTES + 1)), ..good.clone() }, "notes: has more than"),
        (Whitelisted { expires_at: Some(NOW), ..good.clone() }, "expires_at: lies in the past"),
    ] {
        let said = bad.check(NOW).unwrap_err().to_string();
        assert!(said.starts_with(says), "{said}");
    }
}

#[test]
fn the_scanner_waits_longer_than_a_spawn_may_take() {
    OrphanLimits::default().check().unwrap();
    for (limits, says) in [
        (OrphanLimits { min_age_ms: SPAWN_LIMIT_MS, ..OrphanLimits::default() }, "orphans.min_age_ms: "),
        (OrphanLimits { scan_every_ms: 1, ..OrphanLimits::default() }, "orphans.scan_every_ms: "),
    ] {
        let said = limits.check().unwrap_err().to_string();
        assert!(said.starts_with(says), "{said}");
    }
}
