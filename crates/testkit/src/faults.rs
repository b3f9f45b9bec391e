//! The faults of one simulation. Every fault is a decision with a kind and a number (the third message, the fortieth commit), drawn from
//! its own random source, so that a simulation can be repeated without some of them. Only decides; the simulated components act.

use crate::chance::Chance;
use crate::time::Now;
use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;
use std::sync::{Arc, Mutex, MutexGuard};

model::string_enum! {
    /// What may go wrong, and when that is decided.
    pub enum Kind {
        // At a commit of a process of ours.
        CrashBefore = "crash-before",
        CrashAfter = "crash-after",
        /// It is committed, and its caller is told that the outcome is unknown.
        OutcomeUnknown = "outcome-unknown",
        // At a call to the provider.
        CallCrashBefore = "call-crash-before",
        CallCrashAfter = "call-crash-after",
        CallFails = "call-fails",
        /// It is done, and its caller hears only of trouble.
        CallTimesOut = "call-times-out",
        Throttled = "throttled",
        /// The region that is asked has no machine.
        RegionFull = "region-full",
        // At a call of a model.
        ModelBusy = "model-busy",
        /// It has answered, and its caller hears only the beginning.
        StreamCut = "stream-cut",
        /// What should be JSON is none.
        BrokenAnswer = "broken-answer",
        /// It does not say what it has used.
        UsageMissing = "usage-missing",
        /// A planner's plan that cannot be run.
        BadPlan = "bad-plan",
        // At the end of a sync.
        /// The files of a job cannot be brought to its machine.
        SyncFails = "sync-fails",
        // A message.
        Lost = "lost",
        Doubled = "doubled",
        Late = "late",
        /// A hint that is not delivered.
        HintLost = "hint-lost",
        // At a moment of its own.
        /// The control plane is killed and stays away.
        Outage = "outage",
        /// The control plane is killed, and its database is gone.
        DatabaseLost = "database-lost",
        /// It ends in an orderly way, and comes back.
        Upgrade = "upgrade",
        /// The serving process stands still and goes on later, with all it had in memory.
        Frozen = "frozen",
        SecondKilled = "second-killed",
        SecondFrozen = "second-frozen",
        DiskFull = "disk-full",
        ClockForward = "clock-forward",
        ClockBack = "clock-back",
        /// The host is suspended: control plane, machines and commands stop while the time goes on.
        Suspended = "suspended",
        KillRunner = "kill-runner",
        KillKeeper = "kill-keeper",
        DestroyMachine = "destroy-machine",
        MachineAsleep = "machine-asleep",
        /// Nothing from one machine arrives.
        CutUp = "cut-up",
        /// Nothing arrives at one machine.
        CutDown = "cut-down",
        SlowFollower = "slow-follower",
        // For the whole world.
        ListLag = "list-lag",
        GoneLag = "gone-lag",
        SlowCalls = "slow-calls",
        SlowBoots = "slow-boots",
        SecondWorker = "second-worker",
        /// The provider lists what is not ours.
        Strangers = "strangers",
    }
}

use Kind::*;

impl Kind {
    /// How often in ten thousand, where it is about; those that have a moment of their own always come when it is there.
    fn rates(self) -> &'static [i64] {
        match self {
            CrashBefore | CrashAfter => &[5, 20, 60],
            OutcomeUnknown => &[20, 100, 400],
            CallCrashBefore | CallCrashAfter => &[100, 500],
            CallFails | CallTimesOut => &[300, 1500, 4000],
            Throttled => &[500, 4000],
            RegionFull => &[2000, 7000],
            DatabaseLost => &[3000],
            ModelBusy | StreamCut | BrokenAnswer | UsageMissing => &[500, 3000],
            BadPlan => &[3000, 8000],
            SyncFails => &[500, 3000],
            Lost => &[200, 1000, 3000],
            Doubled | Late => &[200, 2000],
            HintLost => &[500, 5000],
            _ => &[ALWAYS],
        }
    }

    fn has_a_moment(self) -> bool {
        (Outage..=SlowFollower).contains(&self)
    }
}

const ALWAYS: i64 = 10_000;
/// Things with a moment of their own in one world: more would only hide each other.
const MOST_BLOWS: usize = 7;

/// The `number`th time that this kind could have struck.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Decision {
    pub kind: Kind,
    pub number: u64,
}

impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.kind, self.number)
    }
}

impl FromStr for Decision {
    type Err = String;

    fn from_str(text: &str) -> Result<Decision, String> {
        let numbered = text.split_once(':').and_then(|(name, number)| Some((name, number.parse().ok()?)));
        let (name, number) = numbered.ok_or_else(|| format!("`{text}` is not KIND:NUMBER, e.g. lost:3"))?;
        let kind = name.parse().map_err(|unknown: model::string_enum::UnknownWord| unknown.to_string())?;
        Ok(Decision { kind, number })
    }
}

/// The faults of one world. Cloning shares them.
#[derive(Clone)]
pub struct Faults {
    inner: Arc<Mutex<Inner>>,
    now: Now,
}

struct Inner {
    seed: u64,
    rates: [i64; Kind::ALL.len()],
    asked: [u64; Kind::ALL.len()],
    only: Option<BTreeSet<Decision>>,
    struck: Vec<(i64, Decision)>,
}

impl Faults {
    /// What is about in the world of this seed, and when the things with a moment of their own come within the first `ms`.
    /// `only`: these and no others.
    pub fn draw(seed: u64, ms: i64, only: Option<&[Decision]>, now: &Now) -> (Faults, Vec<(i64, Kind)>) {
        let mut chance = Chance::of(seed, u64::MAX, 0);
        // From a world without any to one in which most things go wrong at once.
        let storm = chance.pick(&[0, 10, 20, 35, 60]);
        let (mut rates, mut blows) = ([0; Kind::ALL.len()], Vec::new());
        for &kind in Kind::ALL {
            let (about, rate) = (chance.between(0, 100) < storm, chance.pick(kind.rates()));
            if about {
                rates[kind as usize] = rate;
            }
            let times = chance.between(1, 3);
            for _ in 0..if about && kind.has_a_moment() { times } else { 0 } {
                blows.push((chance.between(0, ms), kind));
            }
        }
        while blows.len() > MOST_BLOWS {
            blows.swap_remove(chance.between(0, blows.len() as i64) as usize);
        }
        blows.sort_unstable();
        let only = only.map(|only| only.iter().copied().collect());
        let inner = Inner { seed, rates, asked: [0; Kind::ALL.len()], only, struck: Vec::new() };
        (Faults { inner: Arc::new(Mutex::new(inner)), now: now.clone() }, blows)
    }

    /// Whether this time it happens; if so, with the luck that says how.
    pub fn strikes(&self, kind: Kind) -> Option<Chance> {
        let mut inner = self.lock();
        let number = inner.asked[kind as usize];
        inner.asked[kind as usize] += 1;
        let rate = inner.rates[kind as usize];
        if rate == 0 {
            return None;
        }
        let mut luck = Chance::of(inner.seed, kind as u64, number);
        let decision = Decision { kind, number };
        let drawn = luck.between(0, ALWAYS) < rate;
        if !inner.only.as_ref().map_or(drawn, |only| only.contains(&decision)) {
            return None;
        }
        let at = self.now.ms();
        inner.struck.push((at, decision));
        Some(luck)
    }

    /// Nothing goes wrong any more.
    pub fn calm(&self) {
        self.lock().rates = [0; Kind::ALL.len()];
    }

    /// What has gone wrong so far, and when.
    pub fn struck(&self) -> Vec<(i64, Decision)> {
        self.lock().struck.clone()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().expect("one thread")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_decision_reads_back() {
        for &kind in Kind::ALL {
            let decision = Decision { kind, number: 12 };
            assert_eq!(decision.to_string().parse(), Ok(decision));
        }
        assert_eq!("call-crash-after:3".parse(), Ok(Decision { kind: CallCrashAfter, number: 3 }));
        assert!("lost".parse::<Decision>().unwrap_err().contains("KIND:NUMBER"));
        assert!("lots:1".parse::<Decision>().unwrap_err().contains("cut-down"));
    }

    #[test]
    fn a_world_with_only_some_faults_has_those_and_no_others() {
        let now = Now::new(5);
        let seed = (0..).find(|seed| strikes(&Faults::draw(*seed, 1000, None, &now).0, Lost).len() > 3).unwrap();
        let all = strikes(&Faults::draw(seed, 1000, None, &now).0, Lost);
        let only: Vec<Decision> = all[1..3].iter().map(|(_, decision)| *decision).collect();
        let again = strikes(&Faults::draw(seed, 1000, Some(&only), &now).0, Lost);
        assert_eq!(again, all[1..3]);
    }

    fn strikes(faults: &Faults, kind: Kind) -> Vec<(i64, Decision)> {
        let count = (0..100).filter(|_| faults.strikes(kind).is_some()).count();
        assert_eq!(count, faults.struck().len());
        faults.struck()
    }
}
