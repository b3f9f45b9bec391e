//! What providers list beside what we know: found, said, kept, and ended only by a person's word.

use crate::bench::{Bench, now, settings, spec};
use crate::machines::Plan;
use adapters::FakeTool;
use adapters::fake::{Call, Fate, Next};
use adapters::provider::LIST_PAGE;
use engine::Config;
use engine::orphan::{OrphanOverview, SCAN_NOW_MS, ScanOverview};
use model::fault::Moment;
use model::instance::InstanceStatus;
use model::orphan::{Listed, ListedStatus, OrphanSection, OrphanSeverity, ResourceType, Whitelisted};
use model::run::RunStatus;
use model::time::{DAY, HOUR, MINUTE, SECOND};
use model::{Failure, OrgId, Refused, Timestamp, TroubleKind, names};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};

const OURS: &str = "b3nchm4n";

pub fn listed(bench: &Bench, handle: &str, name: &str, age_ms: i64) -> Listed {
    Listed {
        kind: ResourceType::Instance,
        name: name.to_owned(),
        handle: handle.to_owned(),
        nonce: Some(format!("nonce of {handle}")),
        status: ListedStatus::Running,
        instance_type: Some("large".to_owned()),
        region: "here".to_owned(),
        created_at: Some(bench.at() - age_ms),
        ip: None,
        last_seen: None,
        price_micro: Some(1_230_000),
    }
}

fn bench() -> Bench {
    Bench::with(settings(2), Config::default())
}

fn all(bench: &Bench) -> Vec<OrphanOverview> {
    let (mut found, mut before) = (Vec::new(), i64::MAX);
    loop {
        let page = now(bench.engine.orphans(before, 200)).unwrap();
        let Some(last) = page.last() else { return found };
        before = last.orphan.id.0;
        found.extend(page);
    }
}

fn entry(id: &str, expires_at: Option<Timestamp>) -> Whitelisted {
    Whitelisted {
        provider: String::new(),
        provider_id: id.to_owned(),
        kind: ResourceType::Instance,
        reason: "Temp keep".to_owned(),
        acknowledged_by: "somebody".to_owned(),
        acknowledged_at: Timestamp(0),
        expires_at,
        notes: None,
    }
}

#[test]
fn ten_thousand_of_three_installations_are_read_in_pages_and_only_ours_are_claimed() {
    let mut bench = bench();
    for number in 0..10_000i64 {
        let control = [OURS, "0therpl4", "th1rdpl4"][(number % 3) as usize];
        let name = format!("repl-{control}-none-{}", model::slug(number));
        bench.provider.place(listed(&bench, &format!("i-{number:05}"), &name, 2 * DAY));
    }
    bench.provider.place(listed(&bench, "i-z", "repl-of-an-older-time", DAY));
    // The other region does not answer.
    bench.provider.unlisted_regions(&["there"]);
    now(bench.engine.arm_scans()).unwrap();
    bench.settle();
    let scans = now(bench.engine.scans()).unwrap();
    let here = scans.iter().find(|scan| scan.region == "here").unwrap().scan.clone().unwrap();
    assert_eq!((here.pages, here.listed, here.error), (51, 10_001, None));
    assert_eq!((here.orphans, here.foreign, here.tracked), (3_334 + 1, 6_666, 0));
    let there = scans.iter().find(|scan| scan.region == "there").unwrap().scan.clone().unwrap();
    assert_eq!((there.listed, there.complete_at), (0, None), "not scanned");
    assert!(there.error.is_some(), "{there:?}");
    assert!(bench.provider.longest_page() <= LIST_PAGE, "what is in memory at once is bounded");
    let of = |section| all(&bench).iter().filter(|found| found.section == section).count();
    assert_eq!((of(OrphanSection::OtherSessions), of(OrphanSection::OtherInstallations)), (3_334, 6_666));
    let unknown = all(&bench).into_iter().find(|found| found.section == OrphanSection::Unknown).unwrap();
    assert_eq!((unknown.severity, unknown.orphan.listed.handle.as_str()), (OrphanSeverity::Caution, "i-z"));
    let tally = now(bench.engine.tally_orphans()).unwrap();
    assert_eq!(
        tally.orphans,
        engine::orphan::MOST_COUNTED + 1,
        "counted up to a bound; others' are not ours to warn of"
    );
    assert_eq!(bench.provider.placed().len(), 10_001, "nothing was touched");
}

#[test]
fn what_cannot_be_listed_is_not_scanned_and_never_absent() {
    let mut bench = bench();
    bench.provider.place(listed(&bench, "i-1", "repl-b3nchm4n-9ix-1h2i", HOUR));
    now(bench.engine.scan_now(None)).unwrap();
    assert_eq!(all(&bench).len(), 1);
    bench.fate(|call, _, _| if call == Call::List { Fate::FailBefore(TroubleKind::Auth) } else { Fate::Obey });
    let scans = now(bench.engine.scan_now(Some("fake"))).unwrap();
    assert!(scans.iter().all(|it| it.scan.as_ref().is_some_and(|scan| scan.error.is_some())), "{scans:?}");
    assert!(scans[0].scan.as_ref().unwrap().complete_at.is_some(), "when it last was is still known");
    assert_eq!(all(&bench).len(), 1, "what was found before is still said");
    bench.fate(|_, _, _| Fate::Obey);
    let name = "repl-b3nchm4n-9ix-1h2i";
    bench.provider.place(Listed { status: ListedStatus::Ended, ..listed(&bench, "i-1", name, HOUR) });
    now(bench.engine.scan_now(None)).unwrap();
    assert_eq!(all(&bench), [], "what its provider says has ended is none");
    let unknown = now(bench.engine.scan_now(Some("fkae"))).unwrap_err();
    assert!(unknown.to_string().contains("`fkae` is not set up here"), "{unknown}");
}

/// A user who makes a folder or a host chooses its name: an id that none of ours can have says nothing, and moves nothing.
#[test]
fn a_name_with_an_id_that_none_has_is_shown_and_uses_up_no_ids() {
    let mut bench = bench();
    let far = [names::MAX_ID + 1, i64::MAX].map(model::slug);
    let tailscale = format!("repl-{OURS}-{}", far[1]);
    let all_of_them = [
        format!("repl-{OURS}-none-{}", far[0]),
        format!("repl-{OURS}-none-{}", far[1]),
        format!("repl-{OURS}-{}-1h2i", far[1]),
        // Ours by its name, and yet too great to move anything.
        format!("repl-{OURS}-none-{}", model::slug(names::MAX_SEEN_ID + 1)),
        format!("repl-{OURS}-none-{}", model::slug(700_000)),
    ];
    for (number, name) in all_of_them.iter().enumerate() {
        bench.provider.place(listed(&bench, &format!("i-{number}"), name, DAY));
    }
    let machine = listed(&bench, "ts-1", &tailscale, DAY);
    bench.provider.place(Listed { kind: ResourceType::TailscaleMachine, nonce: None, ..machine });
    now(bench.engine.scan_now(None)).unwrap();
    let mut found: Vec<_> = all(&bench).into_iter().map(|it| (it.orphan.listed.handle, it.section)).collect();
    found.sort_by(|one, other| one.0.cmp(&other.0));
    let (unknown, ours) = (OrphanSection::Unknown, OrphanSection::OtherSessions);
    let shown = [("i-0", unknown), ("i-1", unknown), ("i-2", unknown), ("i-3", ours), ("i-4", ours), ("ts-1", unknown)];
    assert_eq!(found, shown.map(|(handle, section)| (handle.to_owned(), section)));
    bench.runners.plan = Some(Plan::Exit(0));
    for _ in 0..3 {
        let run = bench.submit(spec());
        bench.settle();
        bench.expect_end(run, RunStatus::Completed, None);
        assert!((700_001..800_000).contains(&run.0), "beyond the one that is plausible, and no other: {run}");
        bench.restart();
    }
    bench.check();
}

/// The database is away for a moment, in the middle of a scan: the next scan makes up for it.
#[test]
fn a_write_that_failed_does_not_count_as_ids_passed() {
    let mut bench = bench();
    let place = |bench: &Bench, id: i64| {
        let name = format!("repl-{OURS}-none-{}", model::slug(id));
        bench.provider.place(listed(bench, &format!("i-{id}"), &name, DAY));
    };
    place(&bench, 600_000);
    bench.crashes.count();
    now(bench.engine.scan_now(None)).unwrap();
    let at = bench.crashes.writes.lock().unwrap().iter().position(|name| *name == "ids.pass");
    place(&bench, 900_000);
    bench.crashes.arm(at.expect("the first one was passed"), Moment::Before);
    now(bench.engine.scan_now(None)).unwrap_err();
    assert!(bench.crashes.has_struck());
    bench.crashes.dead.store(false, Ordering::Relaxed);
    now(bench.engine.scan_now(None)).unwrap();
    let run = bench.submit(spec());
    assert!(run.0 > 900_000, "{run}");
    bench.advance(MINUTE);
}

/// One of its hosts is dead: what the others have is found all the same, and what the dead one had counts as there.
#[test]
fn a_provider_that_is_listed_in_part_is_scanned_in_part_and_nothing_vanishes() {
    let mut bench = bench();
    for number in [1, 2] {
        bench.provider.place(listed(&bench, &format!("i-{number}"), &format!("repl-b3nchm4n-9ix-1h{number}i"), HOUR));
    }
    now(bench.engine.scan_now(None)).unwrap();
    bench.advance(MINUTE);
    bench.provider.unplace("i-1");
    bench.provider.place(listed(&bench, "i-3", "repl-b3nchm4n-9ix-1h3i", HOUR));
    bench.provider.list_without(&["box1 cannot be reached"]);
    let scans = now(bench.engine.scan_now(None)).unwrap();
    let here = scans.iter().find(|it| it.region == "here").unwrap().scan.clone().unwrap();
    assert_eq!(here.error.as_deref(), Some("scanned in part, without 1: box1 cannot be reached"));
    assert_eq!((here.listed, here.orphans), (2, 2), "what was listed counts");
    assert!(here.complete_at < Some(here.started_at), "when all of it was last listed is still known");
    let handles = |bench: &Bench| {
        let mut found: Vec<String> = all(bench).into_iter().map(|it| it.orphan.listed.handle).collect();
        found.sort();
        found
    };
    assert_eq!(handles(&bench), ["i-1", "i-2", "i-3"]);
    bench.provider.list_without(&[]);
    now(bench.engine.scan_now(None)).unwrap();
    assert_eq!(handles(&bench), ["i-2", "i-3"], "it is gone once all parts are listed again");
}

/// One region hangs: the other is scanned meanwhile, and of the one that hangs nothing vanishes.
#[test]
fn a_list_that_hangs_is_given_up_and_keeps_no_other() {
    let mut bench = bench();
    let there = |listed: Listed| Listed { region: "there".to_owned(), ..listed };
    bench.provider.place(there(listed(&bench, "i-1", "repl-b3nchm4n-9ix-1h1i", DAY)));
    now(bench.engine.arm_scans()).unwrap();
    bench.settle();
    bench.provider.hanging_regions(&["there"]);
    bench.provider.unplace("i-1");
    bench.provider.place(listed(&bench, "i-2", "repl-b3nchm4n-9ix-1h2i", DAY));
    let before = bench.at();
    let scan = |bench: &Bench, region: &str| {
        let scans = now(bench.engine.scans()).unwrap();
        scans.into_iter().find(|it| it.region == region).unwrap().scan.unwrap()
    };
    let handles = |bench: &Bench| {
        let mut found: Vec<String> = all(bench).into_iter().map(|it| it.orphan.listed.handle).collect();
        found.sort();
        found
    };
    bench.advance(HOUR + 30 * SECOND);
    assert_eq!((scan(&bench, "here").finished_at, scan(&bench, "there").finished_at), (before + HOUR, before));
    assert_eq!(handles(&bench), ["i-1", "i-2"]);
    bench.advance(30 * SECOND);
    let given_up = scan(&bench, "there");
    assert_eq!(given_up.error.as_deref(), Some("it did not answer within 60 s"));
    assert_eq!((given_up.finished_at, given_up.complete_at), (before + HOUR + MINUTE, Some(before)));
    assert_eq!(handles(&bench), ["i-1", "i-2"], "nothing is said to be gone");
    bench.provider.hanging_regions(&[]);
    bench.advance(HOUR);
    assert_eq!((scan(&bench, "there").error, handles(&bench)), (None, vec!["i-2".to_owned()]));
    bench.check();
}

/// The list is without a host on which an uncertain spawn may have left its machine: nothing follows from that it is not listed.
#[test]
fn a_name_is_looked_for_until_every_part_of_its_provider_was_asked() {
    let mut bench = bench();
    bench.runners.unborn = true;
    bench.provider.list_without(&["box1 cannot be reached"]);
    let asked = Arc::new(AtomicUsize::new(0));
    let counted = asked.clone();
    bench.fate(move |call, _, about| match call {
        Call::Spawn | Call::Find => Fate::FailBefore(TroubleKind::Timeout),
        Call::List if about != "repl-" => {
            counted.fetch_add(1, Ordering::Relaxed);
            Fate::Obey
        }
        _ => Fate::Obey,
    });
    bench.submit(spec());
    let asked_in_an_hour = |bench: &mut Bench| {
        let before = asked.load(Ordering::Relaxed);
        bench.advance(HOUR);
        asked.load(Ordering::Relaxed) - before
    };
    asked_in_an_hour(&mut bench);
    assert!(asked_in_an_hour(&mut bench) > 0, "it goes on");
    bench.provider.list_without(&[]);
    asked_in_an_hour(&mut bench);
    assert_eq!(asked_in_an_hour(&mut bench), 0, "all of it was asked");
}

#[test]
fn the_young_are_left_out_by_the_hour_and_marked_on_demand() {
    let mut bench = bench();
    now(bench.engine.arm_scans()).unwrap();
    bench.settle();
    let first = now(bench.engine.scans()).unwrap()[0].scan.clone().expect("at once when the control plane starts");
    assert_eq!((first.finished_at, first.listed), (bench.at(), 0));
    bench.advance(HOUR - 5 * MINUTE);
    bench.provider.place(listed(&bench, "i-1", "repl-b3nchm4n-9ix-1h2i", 0));
    bench.advance(6 * MINUTE);
    assert_eq!(all(&bench), []);
    now(bench.engine.scan_now(None)).unwrap();
    let found = all(&bench);
    assert!(found[0].young && found[0].of_session);
    assert_eq!((found[0].section, found[0].severity), (OrphanSection::CurrentSession, OrphanSeverity::Warning));
    bench.advance(HOUR);
    assert!(!all(&bench)[0].young);
}

#[test]
fn what_was_shown_on_demand_while_it_was_young_stays_at_the_next_hour() {
    let mut bench = bench();
    now(bench.engine.arm_scans()).unwrap();
    bench.settle();
    bench.advance(HOUR - 5 * MINUTE);
    bench.provider.place(listed(&bench, "i-1", "repl-b3nchm4n-9ix-1h2i", 0));
    now(bench.engine.scan_now(None)).unwrap();
    let shown = all(&bench)[0].orphan.id;
    bench.advance(6 * MINUTE);
    assert_eq!(all(&bench).iter().map(|it| (it.orphan.id, it.young)).collect::<Vec<_>>(), [(shown, true)]);
}

#[test]
fn a_tracked_machine_is_no_orphan_and_a_stranger_under_its_name_is() {
    let mut bench = bench();
    bench.runners.plan = Some(Plan::Run);
    let run = bench.submit(spec());
    bench.settle();
    let scans = now(bench.engine.scan_now(None)).unwrap();
    let here = scans[0].scan.clone().unwrap();
    assert_eq!((here.tracked, here.orphans, here.adopted), (1, 0, 0));
    let name = bench.provider.machines().keys().next().unwrap().clone();
    bench.provider.replace_by_stranger(&name);
    now(bench.engine.scan_now(None)).unwrap();
    let found = all(&bench);
    assert_eq!(found[0].orphan.listed.handle, name);
    let matches = now(bench.engine.matches(bench.org, &found[0].orphan)).unwrap();
    assert_eq!(matches.iter().map(|it| it.confidence).collect::<Vec<_>>(), [100]);
    assert_eq!(now(bench.engine.matches(OrgId(i64::MAX), &found[0].orphan)).unwrap(), [], "of another org: nothing");
    bench.cancel(run);
}

/// Its own entry in the tailnet: tracked while the machine is open, an orphan of its own section when the machine has ended.
#[test]
fn what_a_machine_leaves_in_its_tailnet_and_a_snapshot_of_its_disk_are_listed() {
    let mut bench = bench();
    let run = bench.submit(spec());
    bench.settle();
    let machine = bench.job(run).instance.unwrap();
    let entry = format!("repl-{OURS}-{}", machine.slug());
    let placed = listed(&bench, "ts-1", &entry, HOUR);
    bench.provider.place(Listed { kind: ResourceType::TailscaleMachine, nonce: None, ..placed });
    let placed = listed(&bench, "snap-1", &format!("repl-{OURS}-9ix-{}", machine.slug()), HOUR);
    bench.provider.place(Listed { kind: ResourceType::Snapshot, nonce: None, ..placed });
    let of = |bench: &Bench, handle: &str| {
        now(bench.engine.scan_now(None)).unwrap();
        let found = all(bench).into_iter().find(|found| found.orphan.listed.handle == handle);
        found.map(|found| (found.section, found.orphan.listed.kind))
    };
    assert_eq!(of(&bench, "ts-1"), None, "its machine is open");
    let snapshot = (OrphanSection::OtherSessions, ResourceType::Snapshot);
    assert_eq!(of(&bench, "snap-1"), Some(snapshot), "no row knows it");
    bench.terminate(machine, true).unwrap();
    bench.advance(MINUTE);
    assert_eq!(of(&bench, "ts-1"), Some((OrphanSection::Tailscale, ResourceType::TailscaleMachine)));
    for handle in ["ts-1", "snap-1"] {
        now(bench.engine.end_orphan((bench.org, "somebody".to_owned()), (None, handle), handle, false)).unwrap();
    }
    bench.advance(MINUTE);
    assert!(bench.provider.placed().is_empty(), "each is deleted as what it is");
}

/// It cannot be looked up by its name; only the list shows it.
#[test]
fn a_machine_that_an_uncertain_spawn_left_is_adopted_and_then_ended() {
    let mut bench = bench();
    bench.runners.unborn = true;
    bench.fate(|call, _, _| match call {
        Call::Spawn => Fate::FailAfter(TroubleKind::Timeout),
        Call::Find => Fate::FailBefore(TroubleKind::Timeout),
        _ => Fate::Obey,
    });
    let run = bench.submit(spec());
    for _ in 0..30 {
        bench.advance(MINUTE);
    }
    let instance = bench.job(run).instance.unwrap();
    let row = now(bench.engine.instance(bench.org, instance)).unwrap();
    assert_eq!((row.handle.as_ref(), row.status), (Some(&row.name), InstanceStatus::Terminated));
}

#[test]
fn only_a_persons_word_ends_an_orphan_and_only_the_one_that_was_meant() {
    let mut bench = bench();
    bench.provider.place(listed(&bench, "i-1", "repl-b3nchm4n-9ix-1h2i", HOUR));
    bench.provider.place(listed(&bench, "i-2", "repl-0therpl4-9ix-1h2i", HOUR));
    bench.provider.place(listed(&bench, "i-3", "repl-b3nchm4n-9ix-1h2j", HOUR));
    let volume = listed(&bench, "vol-1", "repl-b3nchm4n-9ix-1h2k", HOUR);
    bench.provider.place(Listed { kind: ResourceType::Volume, nonce: None, ..volume });
    now(bench.engine.scan_now(None)).unwrap();
    bench.advance(3 * HOUR);
    assert_eq!(bench.provider.placed().len(), 4, "time alone ends nothing");
    let by = || (OrgId(1), "somebody".to_owned());
    let end = |bench: &Bench, id: &str, typed: &str, force| {
        now(bench.engine.end_orphan(by(), (None, id), typed, force)).map(drop)
    };
    let refused = end(&bench, "i-1", "i-2", false).unwrap_err();
    assert!(refused.to_string().starts_with("confirm: must repeat"), "{refused}");
    let refused = end(&bench, "i-2", "i-2", false).unwrap_err();
    assert!(matches!(refused, Failure::Refused(Refused::Conflict { .. })), "{refused}");
    assert!(matches!(end(&bench, "i-9", "i-9", true), Err(Failure::Refused(Refused::NotFound { .. }))));
    // Under the id of one there is another by then.
    let name = "repl-b3nchm4n-9ix-1h2j";
    bench.provider.place(Listed { nonce: Some("another".to_owned()), ..listed(&bench, "i-3", name, HOUR) });
    for (id, force) in [("i-1", false), ("i-2", true), ("i-3", false), ("vol-1", false)] {
        end(&bench, id, id, force).unwrap();
    }
    bench.advance(MINUTE);
    assert_eq!(bench.provider.placed().keys().collect::<Vec<_>>(), ["i-3"]);
    let left = now(bench.engine.orphan(None, "i-3")).unwrap();
    assert_eq!(left.orphan.ending, None, "nobody tries it any more: a person may ask again");
    let why = left.orphan.refused.unwrap();
    assert!(why.contains("is another resource now"), "{why}");
    assert_eq!(all(&bench).len(), 1);
}

/// One dead host of the provider makes its list fail as a whole; the machine itself can be asked.
#[test]
fn an_orphan_is_ended_at_a_provider_that_cannot_be_listed() {
    let mut bench = bench();
    bench.provider.place(listed(&bench, "i-1", "repl-b3nchm4n-9ix-1h2i", HOUR));
    now(bench.engine.scan_now(None)).unwrap();
    bench.fate(|call, _, _| if call == Call::List { Fate::FailBefore(TroubleKind::Network) } else { Fate::Obey });
    now(bench.engine.end_orphan((OrgId(1), "somebody".to_owned()), (None, "i-1"), "i-1", false)).unwrap();
    bench.advance(MINUTE);
    assert!(bench.provider.placed().is_empty());
    assert_eq!(all(&bench), []);
}

/// What has no tag is looked for in its provider's list. While a part of the provider cannot be asked, it may be there and cost money.
#[test]
fn what_is_not_listed_is_not_gone_while_a_part_of_its_provider_cannot_be_asked() {
    let mut bench = bench();
    let untagged = |listed: Listed| Listed { nonce: None, ..listed };
    let volume = |bench: &Bench| {
        let volume = listed(bench, "vol-1", "repl-b3nchm4n-9ix-1h2k", HOUR);
        untagged(Listed { kind: ResourceType::Volume, ..volume })
    };
    let machine = |bench: &Bench| untagged(listed(bench, "i-1", "repl-b3nchm4n-9ix-1h2i", HOUR));
    bench.provider.place(volume(&bench));
    bench.provider.place(machine(&bench));
    now(bench.engine.scan_now(None)).unwrap();
    for id in ["vol-1", "i-1"] {
        now(bench.engine.keep_orphan(bench.org, None, entry(id, None))).unwrap();
        bench.provider.unplace(id);
    }
    bench.provider.list_without(&["box1 cannot be reached"]);
    for id in ["vol-1", "i-1"] {
        now(bench.engine.end_orphan((bench.org, "somebody".to_owned()), (None, id), id, false)).unwrap();
    }
    bench.advance(HOUR);
    for id in ["vol-1", "i-1"] {
        let ending = now(bench.engine.orphan(None, id)).unwrap().orphan.ending.expect("it is tried again");
        assert_eq!(ending.error.as_deref(), Some("box1 cannot be reached"), "{id}");
    }
    assert_eq!(now(bench.engine.kept_orphans(Default::default(), 10)).unwrap().len(), 2);
    bench.provider.list_without(&[]);
    bench.provider.place(volume(&bench));
    bench.provider.place(machine(&bench));
    bench.advance(HOUR);
    assert!(bench.provider.placed().is_empty(), "it is ended once its part can be asked");
    assert_eq!((all(&bench), now(bench.engine.kept_orphans(Default::default(), 10)).unwrap()), (vec![], vec![]));
}

/// More than a page of names begins with its name.
#[test]
fn what_is_to_be_ended_is_found_on_any_page_of_the_list() {
    let mut bench = bench();
    let place = |bench: &Bench, handle: &str, name: &str| {
        let volume = Listed { kind: ResourceType::Volume, nonce: None, ..listed(bench, handle, name, HOUR) };
        bench.provider.place(volume);
    };
    for number in 0..LIST_PAGE as i64 + 1 {
        place(&bench, &format!("vol-{number}"), &format!("repl-b3nchm4n-9ix-1{}", model::slug(number)));
    }
    place(&bench, "vol-z", "repl-b3nchm4n-9ix-1");
    now(bench.engine.scan_now(None)).unwrap();
    now(bench.engine.end_orphan((bench.org, "somebody".to_owned()), (None, "vol-z"), "vol-z", false)).unwrap();
    bench.advance(MINUTE);
    assert_eq!(bench.provider.placed().len(), LIST_PAGE + 1);
    assert!(!bench.provider.placed().contains_key("vol-z"));
}

/// A provider that cannot be asked is asked less and less often, and one that does not answer holds its worker for ten minutes.
#[test]
fn an_end_that_does_not_come_about_is_tried_less_and_less_often() {
    let mut bench = bench();
    bench.provider.place(listed(&bench, "i-1", "repl-b3nchm4n-9ix-1h2i", HOUR));
    now(bench.engine.scan_now(None)).unwrap();
    let tries = Arc::new(AtomicUsize::new(0));
    let counted = tries.clone();
    bench.fate(move |call, _, _| match call {
        Call::Inspect => {
            counted.fetch_add(1, Ordering::Relaxed);
            Fate::FailBefore(TroubleKind::Network)
        }
        _ => Fate::Obey,
    });
    now(bench.engine.end_orphan((bench.org, "somebody".to_owned()), (None, "i-1"), "i-1", false)).unwrap();
    bench.advance(2 * HOUR);
    let tried = tries.load(Ordering::Relaxed);
    assert!((10..30).contains(&tried), "{tried}");
    bench.fate(|_, _, _| Fate::Obey);
    bench.provider.hanging_ends(true);
    bench.advance(21 * MINUTE);
    let ending = now(bench.engine.orphan(None, "i-1")).unwrap().orphan.ending.unwrap();
    assert_eq!(ending.error.as_deref(), Some("it did not answer within 600 s"));
    bench.provider.hanging_ends(false);
    bench.advance(21 * MINUTE);
    assert!(bench.provider.placed().is_empty());
    bench.check();
}

/// A region that hangs takes its minute; a person who scans waits for the slowest region, and not for their sum.
#[test]
fn a_scan_on_demand_lists_regions_side_by_side_and_ends() {
    let mut settings = settings(2);
    settings.capabilities.regions = (0..100).map(|number| format!("r{number}")).collect();
    let regions = settings.capabilities.regions.clone();
    let mut bench = Bench::with(settings, Config::default());
    let mut scan = |hanging: usize| {
        let hang: Vec<&str> = regions[..hanging].iter().map(String::as_str).collect();
        bench.provider.hanging_regions(&hang);
        let engine = bench.engine.clone();
        let mut asked: Pin<Box<dyn Future<Output = _>>> = Box::pin(async move { engine.scan_now(None).await });
        let mut minutes = 0;
        loop {
            if let Poll::Ready(scans) = asked.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                return (minutes, scans.unwrap());
            }
            assert!(minutes < 100);
            bench.elapse(MINUTE);
            minutes += 1;
        }
    };
    let failed = |scans: &[ScanOverview]| -> Vec<String> {
        scans.iter().filter_map(|it| it.scan.as_ref()?.error.clone()).collect()
    };
    let (minutes, scans) = scan(8);
    assert_eq!((minutes, scans.len()), (1, 100));
    assert_eq!(failed(&scans), vec!["it did not answer within 60 s"; 8]);
    assert!(scans.iter().map(|it| &it.region).eq(&regions), "in the order of the settings");
    let (minutes, scans) = scan(100);
    let no_time = |scans: &[ScanOverview]| failed(scans).iter().filter(|why| why.contains("no time left")).count();
    assert_eq!((minutes, failed(&scans).len(), no_time(&scans)), (SCAN_NOW_MS / MINUTE, 100, 36));
    // What hangs in front keeps the others from no scan but the first.
    let (_, scans) = scan(64);
    assert_eq!((failed(&scans).len(), no_time(&scans)), (64, 0), "it begins with those that were not asked");
    assert!(scans.iter().map(|it| &it.region).eq(&regions), "in the order of the settings all the same");
}

/// Each page comes in time, and there is always another.
#[test]
fn a_list_whose_pages_come_slowly_is_given_up_when_half_the_time_to_the_next_scan_is_over() {
    let mut settings = settings(2);
    settings.capabilities.regions = vec!["here".to_owned()];
    let mut bench = Bench::with(settings, Config::default());
    let counts_on = |after: Option<&str>| format!("{:06}", after.map_or(1, |after| after.parse::<i64>().unwrap() + 1));
    bench.provider.endless_lists(Some(counts_on));
    bench.provider.pages_left(0);
    now(bench.engine.arm_scans()).unwrap();
    bench.settle();
    let mut pages = 0;
    let ended = loop {
        bench.advance(50 * SECOND);
        bench.provider.pages_left(1);
        bench.settle();
        pages += 1;
        assert!(pages < 100);
        if let Some(scan) = now(bench.engine.scans()).unwrap().remove(0).scan {
            break scan;
        }
    };
    assert_eq!(ended.error.as_deref(), Some("it did not answer within 1800 s"));
    assert_eq!((ended.pages, ended.complete_at), (35, None));
}

/// A provider that is not set up any more lists nothing: nobody can look after what it had, so nobody is warned of it.
#[test]
fn orphans_go_with_their_provider_and_are_found_again_when_it_is_back() {
    let mut bench = bench();
    for number in 0..300 {
        bench.provider.place(listed(&bench, &format!("i-{number}"), &format!("repl-{OURS}-9ix-1h{number}"), HOUR));
    }
    now(bench.engine.arm_scans()).unwrap();
    bench.settle();
    assert_eq!(all(&bench).len(), 300);
    bench.restart_without_providers();
    bench.advance(HOUR + MINUTE);
    assert_eq!((all(&bench).len(), now(bench.engine.tally_orphans()).unwrap().orphans), (0, 0));
    bench.restart_with_providers();
    bench.advance(HOUR + MINUTE);
    assert_eq!(all(&bench).len(), 300);
}

/// A provider whose list has always another page: what it lists is written down, and nothing of what was found before is gone.
#[test]
fn a_list_without_an_end_is_given_up() {
    let bench = bench();
    let counts_on = |after: Option<&str>| format!("{:06}", after.map_or(1, |after| after.parse::<i64>().unwrap() + 1));
    let cases: [(Next, i64, &str); 2] = [
        (|_| "again".to_owned(), 2, "its list does not go on"),
        (counts_on, 5_000, "its list has more than 5000 pages"),
    ];
    for (next, pages, why) in cases {
        bench.provider.endless_lists(None);
        for id in ["i-1", "i-2"] {
            bench.provider.place(listed(&bench, id, &format!("repl-b3nchm4n-9ix-1h{}", &id[2..]), HOUR));
        }
        now(bench.engine.scan_now(None)).unwrap();
        bench.provider.unplace("i-1");
        bench.provider.endless_lists(Some(next));
        let scans = now(bench.engine.scan_now(None)).unwrap();
        let here = scans[0].scan.clone().unwrap();
        assert_eq!((here.pages, here.error.as_deref()), (pages, Some(why)));
        assert_eq!(all(&bench).len(), 2, "{why}");
    }
}

#[test]
fn what_somebody_keeps_is_told_of_again_when_its_time_is_up() {
    let mut bench = bench();
    let program = Arc::new(FakeTool::obedient());
    bench.notifying(program.clone());
    bench.provider.place(listed(&bench, "i-1", "repl-b3nchm4n-9ix-1h2i", HOUR));
    bench.provider.place(listed(&bench, "i-2", "repl-0therpl4-9ix-1h2i", HOUR));
    now(bench.engine.arm_scans()).unwrap();
    now(bench.engine.scan_now(None)).unwrap();
    bench.advance(SECOND);
    let told = |program: &FakeTool| program.seen().len();
    assert_eq!(told(&program), 1, "one message, and others' are not told of");
    let keep = |bench: &Bench, entry| now(bench.engine.keep_orphan(bench.org, None, entry)).map(drop);
    let kept_until = bench.at() + 90 * MINUTE;
    let past = keep(&bench, entry("i-1", Some(bench.at()))).unwrap_err();
    assert!(past.to_string().starts_with("expires_at: lies in the past"), "{past}");
    let nothing = keep(&bench, Whitelisted { reason: String::new(), ..entry("i-1", None) }).unwrap_err();
    assert!(nothing.to_string().starts_with("reason: is required"), "{nothing}");
    keep(&bench, entry("i-1", Some(kept_until))).unwrap();
    assert_eq!(now(bench.engine.tally_orphans()).unwrap().orphans, 0);
    assert!(now(bench.engine.orphan(None, "i-1")).unwrap().is_whitelisted());
    bench.advance(HOUR);
    assert_eq!(told(&program), 1);
    bench.advance(HOUR + MINUTE);
    assert_eq!((told(&program), now(bench.engine.tally_orphans()).unwrap().orphans), (2, 1));
    assert_eq!(now(bench.engine.kept_orphans(Default::default(), 10)).unwrap(), []);
    keep(&bench, entry("i-1", None)).unwrap();
    let unkeep = |bench: &Bench| now(bench.engine.unkeep_orphan((bench.org, "x".into()), None, "i-1"));
    unkeep(&bench).unwrap();
    assert!(matches!(unkeep(&bench), Err(Failure::Refused(Refused::NotFound { .. }))));
}
