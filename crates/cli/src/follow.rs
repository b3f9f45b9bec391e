//! Follows a run: copies its output to stdout and stderr unchanged, each byte once, also after lost connections.
//! Adds nothing to the run's output; messages of `repl` itself go to stderr.

use crate::complaint::Done;
use crate::control_plane::{API, ControlPlane};
use crate::live::Live;
use crate::say;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::io::AsyncWriteExt as _;
use wire::api::{EventView, LogAttempt, LogEnd, LogFrame, RunView, StepDetailView, StepView};
use wire::client::{ClientError, Event};

const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// An embedded control plane that does not start so often in a row will not start at all.
const FAILED_STARTS: u32 = 5;
/// A control plane that fails the same way so often in a row has a fault that waiting does not mend.
const FAILED_ANSWERS: u32 = 5;

/// Which part of a log.
#[derive(Debug, Clone, Default)]
pub struct Part {
    pub follow: bool,
    pub tail: Option<u64>,
    pub since_ms: Option<i64>,
    pub job: Option<String>,
    pub step: Option<String>,
    pub stream: Option<String>,
}

impl Part {
    fn path(&self, run: &str, resumed: bool) -> String {
        let mut path = format!("/runs/{run}/logs?follow={}", self.follow);
        let mut ask = |name: &str, value: Option<String>| {
            if let Some(value) = value {
                path.push_str(&format!("&{name}={}", wire::client::encode(&value)));
            }
        };
        ask("job", self.job.clone());
        ask("step", self.step.clone());
        ask("stream", self.stream.clone());
        // Once something has been seen, where to go on is said by its id.
        if !resumed {
            ask("tail", self.tail.map(|lines| lines.to_string()));
            ask("since_ms", self.since_ms.map(|ms| ms.to_string()));
        }
        path
    }
}

/// Writes a run's log from its beginning to its end, and gives back the run as it ended. What people are asked about a run of agents is
/// told meanwhile, with the command that answers it.
pub async fn run(plane: &ControlPlane, run: &str, is_of_agents: bool, live: &Live) -> Done<RunView> {
    let mut asked = None;
    let mut sink = Sink::new(live);
    let part = Part { follow: true, ..Part::default() };
    loop {
        let end = tokio::select! {
            end = logs(plane, run, &part, &mut sink) => end?,
            () = live.keep_up(plane, run) => unreachable!("it watches as long as it is asked to"),
            () = questions(plane, run, &mut asked, live), if is_of_agents => unreachable!("so does this"),
        };
        let view = ended(plane, run, live).await?;
        if matches!(view.status.as_str(), "completed" | "failed" | "cancelled") {
            live.done();
            say_if_cut(&end);
            return Ok(view);
        }
        // Complete, and the run goes on: it is about to be tried again.
        tokio::time::sleep(FIRST_PAUSE).await;
    }
}

/// Tells of each new ticket and approval, and of messages to agents. `last`: the event that was seen last.
async fn questions(plane: &ControlPlane, run: &str, last: &mut Option<String>, live: &Live) {
    loop {
        if let Ok(mut events) = plane.events(&format!("/runs/{run}/events"), last.as_deref()).await {
            while let Ok(Some(event)) = events.next().await {
                *last = (event.event != "reset").then(|| event.id.clone());
                let view = serde_json::from_str::<EventView>(&event.data).ok();
                let told = |view: &EventView| crate::question::told(view).or_else(|| crate::message::told(view));
                if let Some(text) = view.as_ref().and_then(told) {
                    live.tell(&text);
                }
            }
        }
        // The log's follower does the talking about a control plane that is away.
        tokio::time::sleep(LONGEST_PAUSE).await;
    }
}

/// A log that ends too early must not look like one that ended.
pub fn say_if_cut(end: &LogEnd) {
    if end.cut {
        eprintln!("repl: the end of this log is missing: its machine was lost before it arrived");
    }
}

/// The run, however long it takes to reach its control plane: its log is complete, so its end is there to be told.
async fn ended(plane: &ControlPlane, run: &str, live: &Live) -> Done<RunView> {
    let mut persistence = Persistence::default();
    loop {
        match plane.client().get(&format!("{API}/runs/{run}")).await {
            Ok(view) => return Ok(view),
            Err(broken) => persistence.wait(plane, broken, live).await?,
        }
    }
}

/// Writes a log; comes back when the server says it is complete.
pub async fn logs(plane: &ControlPlane, run: &str, part: &Part, sink: &mut Sink<'_>) -> Done<LogEnd> {
    let mut last: Option<String> = None;
    let mut persistence = Persistence::default();
    loop {
        let broken = match plane.events(&part.path(run, last.is_some()), last.as_deref()).await {
            Ok(mut events) => loop {
                match events.next().await {
                    Ok(Some(event)) => {
                        persistence.reset();
                        if event.event == "reset" {
                            last = None;
                        } else if !event.id.is_empty() {
                            last = Some(event.id.clone());
                        }
                        if let Some(end) = sink.take(plane, run, &event).await? {
                            return Ok(end);
                        }
                    }
                    Ok(None) => break ClientError::Unreachable("the stream ended early".to_owned()),
                    Err(error) => break error,
                }
            },
            Err(error) => error,
        };
        persistence.wait(plane, broken, sink.live).await?;
    }
}

/// How long to wait between tries, and when to give up.
#[derive(Default)]
pub struct Persistence {
    tries: u32,
    failed_starts: u32,
    failed_answers: u32,
}

impl Persistence {
    pub fn reset(&mut self) {
        *self = Persistence::default();
    }

    /// Whether the same question may be answered otherwise: at once after a restart or a pause, a few times after a failure inside
    /// the control plane.
    fn may_change(&mut self, broken: &ClientError) -> bool {
        match broken {
            ClientError::Unreachable(_) => true,
            ClientError::Problem(problem) if problem.status == 500 => {
                self.failed_answers += 1;
                self.failed_answers < FAILED_ANSWERS
            }
            ClientError::Problem(problem) => matches!(problem.status, 429 | 501..),
            ClientError::Protocol(_) | ClientError::TooMuch(_) => false,
        }
    }

    /// Returns when it is worth trying again; an answer that will not change is the caller's.
    pub async fn wait(&mut self, plane: &ControlPlane, broken: ClientError, live: &Live) -> Done<()> {
        let other_scheme = crate::complaint::other_scheme(&broken, plane.client().base()).is_some();
        if other_scheme || !self.may_change(&broken) {
            return Err(plane.complaint(&broken));
        }
        // The first break is usually a restart, which is over before a message could be read.
        if self.tries == 1 {
            live.say("lost the control plane; the run goes on, trying to reach it again");
        }
        if plane.is_embedded()
            && let Err(complaint) = plane.again().await
        {
            self.failed_starts += 1;
            if self.failed_starts >= FAILED_STARTS {
                return Err(complaint);
            }
        }
        let pause = FIRST_PAUSE.saturating_mul(1 << self.tries.min(6)).min(LONGEST_PAUSE);
        self.tries += 1;
        tokio::time::sleep(pause).await;
        Ok(())
    }
}

/// Which steps of a run of agents are meant: of this agent, of this task, of this name. Steps begin while their log is followed, so each
/// is looked up when its first frame comes.
pub struct Steps<'a> {
    pub plane: &'a ControlPlane,
    pub run: String,
    /// Ids.
    pub agent: Option<String>,
    pub task: Option<String>,
    /// A name; that of a child begins with its parent's.
    pub name: Option<String>,
    pub known: BTreeMap<String, bool>,
}

impl Steps<'_> {
    async fn want(&mut self, step: &str) -> Done<bool> {
        if let Some(wanted) = self.known.get(step) {
            return Ok(*wanted);
        }
        let view: StepDetailView = self.plane.get(&format!("/runs/{}/steps/{step}", self.run)).await?;
        let wanted = self.fits(&view.step);
        self.known.insert(step.to_owned(), wanted);
        Ok(wanted)
    }

    pub fn fits(&self, step: &StepView) -> bool {
        let name_fits = |name: &String| {
            step.name == *name || step.name.strip_prefix(name.as_str()).is_some_and(|rest| rest.starts_with('/'))
        };
        self.agent.as_ref().is_none_or(|agent| step.agent == *agent)
            && self.task.as_ref().is_none_or(|task| step.task == *task)
            && self.name.as_ref().is_none_or(name_fits)
    }
}

/// Where the bytes go.
pub struct Sink<'a> {
    live: &'a Live,
    stdout: tokio::io::Stdout,
    stderr: tokio::io::Stderr,
    /// How far each log has been written, by its job, or by its step and try: a replay after a break repeats nothing.
    written: BTreeMap<(String, Option<String>, Option<i64>), i64>,
    /// The newest try of each step that has written something.
    tries: BTreeMap<String, i64>,
    /// Only these jobs, when asked so.
    pub only: Option<Vec<String>>,
    /// Only steps like this, when asked so.
    pub steps: Option<Steps<'a>>,
    /// Another attempt is announced when its output comes, not when it begins: of a log that is only read, the parts that were not
    /// asked for are not announced.
    pub waits_for_output: bool,
    /// The latest attempt, and what is still to be said of it.
    attempt: i64,
    announced: Option<String>,
}

impl<'a> Sink<'a> {
    pub fn new(live: &'a Live) -> Sink<'a> {
        Sink {
            live,
            stdout: tokio::io::stdout(),
            stderr: tokio::io::stderr(),
            written: BTreeMap::new(),
            tries: BTreeMap::new(),
            only: None,
            steps: None,
            waits_for_output: false,
            attempt: 1,
            announced: None,
        }
    }

    async fn take(&mut self, plane: &ControlPlane, run: &str, event: &Event) -> Done<Option<LogEnd>> {
        let unread = |error: serde_json::Error| ClientError::Protocol(format!("{error} in an event of the log"));
        match event.event.as_str() {
            "log" => {
                let frame: LogFrame = serde_json::from_str(&event.data).map_err(unread)?;
                if let (Some(steps), Some(step)) = (&mut self.steps, &frame.step)
                    && !steps.want(step).await?
                {
                    return Ok(None);
                }
                let fresh = self.fresh(&frame);
                if fresh > 0 && self.is_new_try(&frame) {
                    self.mark_try(plane, run, &frame).await;
                }
                self.write(&frame.stream, fresh, &frame.data.0).await?;
                Ok(None)
            }
            "attempt" => {
                let begun: LogAttempt = serde_json::from_str(&event.data).map_err(unread)?;
                // A stream that was cut and goes on says it again.
                if begun.attempt > self.attempt {
                    self.announced = Some(format!("attempt {} of {}", begun.attempt, begun.max_attempts));
                }
                if !self.waits_for_output {
                    self.announce();
                }
                self.attempt = self.attempt.max(begun.attempt);
                Ok(None)
            }
            "end" => Ok(Some(serde_json::from_str(&event.data).map_err(unread)?)),
            _ => Ok(None), // of a later version
        }
    }

    fn announce(&mut self) {
        if let Some(text) = self.announced.take() {
            self.live.tell(&text);
        }
    }

    /// Whether this is the first output of another try of its step.
    fn is_new_try(&mut self, frame: &LogFrame) -> bool {
        let (Some(step), Some(number)) = (&frame.step, frame.number) else { return false };
        let seen = self.tries.entry(step.clone()).or_insert(1);
        let is_new = number > *seen;
        *seen = number.max(*seen);
        is_new
    }

    /// By the step's name, if that can be asked for now.
    async fn mark_try(&mut self, plane: &ControlPlane, run: &str, frame: &LogFrame) {
        let (Some(step), Some(number)) = (&frame.step, frame.number) else { return };
        self.announce();
        let view: Done<StepDetailView> = plane.get(&format!("/runs/{run}/steps/{step}")).await;
        let name = view.map_or_else(|_| step.clone(), |view| view.step.name);
        self.live.tell(&format!("{name}: try {number}"));
    }

    /// How many bytes at the frame's end are new.
    fn fresh(&mut self, frame: &LogFrame) -> usize {
        if self.only.as_ref().is_some_and(|jobs| !jobs.contains(&frame.job)) {
            return 0;
        }
        let end = frame.offset + frame.data.0.len() as i64;
        let log = (frame.job.clone(), frame.step.clone(), frame.number);
        let written = self.written.entry(log).or_insert(0);
        let fresh = (end - frame.offset.max(*written)).max(0);
        *written = end.max(*written);
        fresh as usize
    }

    async fn write(&mut self, stream: &str, fresh: usize, bytes: &[u8]) -> Done<()> {
        let bytes = &bytes[bytes.len() - fresh..];
        if bytes.is_empty() {
            return Ok(());
        }
        self.announce();
        self.live.output(stream, bytes);
        let written = match stream {
            "stdout" => write(&mut self.stdout, bytes).await,
            "stderr" => write(&mut self.stderr, bytes).await,
            // Words of the runner, not of the work.
            _ => write(&mut self.stderr, &noted(bytes)).await,
        };
        written.map_err(|error| crate::complaint::Complaint::refused(format!("cannot write the output: {error}")))
    }
}

async fn write(to: &mut (impl tokio::io::AsyncWrite + Unpin), bytes: &[u8]) -> std::io::Result<()> {
    to.write_all(bytes).await?;
    to.flush().await
}

fn noted(bytes: &[u8]) -> Vec<u8> {
    let text = String::from_utf8_lossy(bytes);
    text.lines().map(|line| say::harmless(&format!("repl: {line}\n"))).collect::<String>().into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::Base64;

    #[tokio::test]
    async fn a_replay_repeats_nothing() {
        let live = Live::none();
        let mut sink = Sink::new(&live);
        let frame = |job: &str, offset, length: usize| LogFrame {
            job: job.to_owned(),
            step: None,
            number: None,
            stream: "stdout".to_owned(),
            offset,
            at: 0,
            data: Base64(vec![b'x'; length]),
        };
        let table = [
            (frame("job_1", 0, 10), 10),
            (frame("job_1", 0, 10), 0),
            (frame("job_1", 5, 10), 5),
            (frame("job_2", 0, 3), 3),
            (frame("job_1", 100, 5), 5),
            (frame("job_1", 20, 5), 0),
        ];
        for (frame, fresh) in table {
            assert_eq!(sink.fresh(&frame), fresh, "{} at {}", frame.job, frame.offset);
        }
    }

    #[test]
    fn a_new_try_is_marked_once() {
        let live = Live::none();
        let mut sink = Sink::new(&live);
        let table = [("a", 1, false), ("a", 2, true), ("a", 2, false), ("b", 3, true), ("a", 1, false), ("a", 3, true)];
        for (step, number, marked) in table {
            let (stream, data) = ("stdout".to_owned(), Base64(b"x".to_vec()));
            let (step, number) = (Some(step.to_owned()), Some(number));
            let frame = LogFrame { job: "job_1".into(), step, number, stream, offset: 0, at: 0, data };
            assert_eq!(sink.is_new_try(&frame), marked, "{:?} {:?}", frame.step, frame.number);
        }
    }

    #[test]
    fn a_fault_of_the_control_plane_is_not_asked_for_ever() {
        let problem = |status| ClientError::Problem(Box::new(wire::client::Problem { status, ..Default::default() }));
        let times = |broken: &ClientError| {
            let mut persistence = Persistence::default();
            (0..100).take_while(|_| persistence.may_change(broken)).count()
        };
        for (broken, most) in [
            (problem(500), FAILED_ANSWERS as usize - 1),
            (problem(503), 100),
            (problem(429), 100),
            (problem(404), 0),
            (ClientError::Unreachable("restart".into()), 100),
        ] {
            assert_eq!(times(&broken), most, "{broken:?}");
        }
    }

    #[test]
    fn a_resumed_question_says_where_by_id_alone() {
        let part = Part { follow: true, tail: Some(5), stream: Some("stderr".into()), ..Part::default() };
        assert_eq!(part.path("run_1", false), "/runs/run_1/logs?follow=true&stream=stderr&tail=5");
        assert_eq!(part.path("run_1", true), "/runs/run_1/logs?follow=true&stream=stderr");
    }

    #[test]
    fn the_runners_words_are_marked() {
        assert_eq!(noted(b"not found\nsorry"), b"repl: not found\nrepl: sorry\n");
        assert_eq!(noted(b"\x1b[2Jgone"), b"repl: \\x1b[2Jgone\n");
    }
}
