//! Standard input: every byte, in each attempt again, and nothing of it can be changed by the command.

use crate::host::RunnerUnderTest;
use wire::Base64;
use wire::model::JobId;
use wire::runner::{EndCause, Stdin, Stream, What};

fn stdin(bytes: &[u8], inline: bool) -> Stdin {
    Stdin {
        hash: blake3::hash(bytes).to_hex().to_string(),
        size: bytes.len() as i64,
        inline: inline.then(|| Base64(bytes.to_vec())),
    }
}

async fn run(host: &RunnerUnderTest, number: i64, script: &str, stdin: Stdin) -> (What, String) {
    let mut job = host.job(script);
    (job.job, job.workdir, job.stdin, job.attempt) = (JobId(number), format!("work_{number}"), Some(stdin), number);
    host.ask(job);
    host.control.until("its end", |state| state.ended(JobId(number)).is_some()).await;
    host.control
        .see(|state| (state.ended(JobId(number)).cloned().unwrap(), state.log(JobId(number)).text(Stream::Stdout)))
}

#[tokio::test]
async fn what_was_piped_in_is_read_to_its_end_in_every_attempt() {
    let host = RunnerUnderTest::new().await;
    let large: Vec<u8> = (0..1_000_000u32).flat_map(u32::to_le_bytes).collect();
    let hash = blake3::hash(&large).to_hex().to_string();
    host.control.change(|state| state.blobs.insert(hash, large.clone()));
    for number in 1..=2 {
        let (_, said) = run(&host, number, "cat > copy; cksum < copy; wc -c < copy", stdin(&large, false)).await;
        assert!(said.ends_with(" 4000000\n4000000\n"), "{said}");
        let copy = std::fs::read(host.dir.join(format!("work_{number}/copy"))).unwrap();
        assert!(copy == large, "attempt {number}");
    }
    assert_eq!(host.control.see(|state| state.blobs_served), 1, "fetched once");
    let (_, said) = run(&host, 3, "read a; echo \"$a|\"; cat", stdin(b"one\ntwo\n", true)).await;
    assert_eq!(said, "one|\ntwo\n");
    let (_, said) = run(&host, 4, "cat; echo end", stdin(b"", true)).await;
    assert_eq!(said, "end\n");
}

#[tokio::test]
async fn a_command_need_not_read_and_cannot_write() {
    let host = RunnerUnderTest::new().await;
    let large = vec![b'x'; 3_000_000];
    let hash = blake3::hash(&large).to_hex().to_string();
    host.control.change(|state| state.blobs.insert(hash.clone(), large.clone()));
    let script = "head -c 3; echo; readlink /proc/self/fd/0 | cut -d: -f1; exec 0<&-; exit 4";
    let (end, said) = run(&host, 1, script, stdin(&large, false)).await;
    assert!(matches!(end, What::Ended { exit_code: Some(4), cause: None, .. }), "{end:?}");
    assert_eq!(said, "xxx\npipe\n");
    run(&host, 2, "true", stdin(&large, false)).await;
    assert!(std::fs::read(host.dir.join("blobs").join(&hash[..2]).join(&hash)).unwrap() == large, "as it was");
}

#[tokio::test]
async fn input_that_does_not_arrive_keeps_the_job_from_starting() {
    let host = RunnerUnderTest::new().await;
    let mut wrong = stdin(b"right", true);
    wrong.inline = Some(Base64(b"wrong".to_vec()));
    for (number, bad) in [(1, wrong), (2, stdin(b"nobody has this", false))] {
        let (end, _) = run(&host, number, "touch ran", bad).await;
        let What::Ended { cause, started, message, .. } = end else { panic!() };
        assert_eq!((cause, started), (Some(EndCause::SyncFailed), false), "{message:?}");
        assert!(!host.dir.join(format!("work_{number}/ran")).exists());
    }
}
