//! Tests of what a specification accepts and shows.

use super::*;
use crate::tree::MAX_CACHED_FILES;

#[test]
fn what_a_shell_would_have_understood_is_noticed() {
    let argv = |words: &[&str]| Command::Argv(words.iter().map(|word| (*word).to_owned()).collect());
    let said = |words: &[&str]| argv(words).needs_shell().unwrap_or_default();
    assert!(said(&["echo hello"]).starts_with("`echo hello` was looked for as one program"));
    assert!(said(&["cd", "src"]).starts_with("`cd` is a word of the shell"));
    assert_eq!((said(&["nothing"]), said(&["my tool", "x"])), (String::new(), String::new()));
    assert_eq!(Command::Shell("cd src".into()).needs_shell(), None);
}

#[test]
fn a_word_that_looks_like_a_file_is_noticed() {
    for (text, is_file) in [
        ("python3 train.py", true),
        ("sh ./go.sh>log", true),
        ("cat data/a.csv", true),
        ("python3 -c 1.5", false),
        ("sh /opt/x.sh", false),
        ("curl https://control.example", false),
        ("echo done.", false),
        ("make test", false),
    ] {
        assert_eq!(Command::Shell(text.into()).names_file(), is_file, "{text}");
    }
}

#[test]
fn a_machine_satisfies_what_is_no_larger() {
    let of = |cpu, memory| Resources { cpu_milli: cpu, memory_bytes: memory, gpu: None, disk_bytes: None };
    let table = [
        (of(None, None), of(Some(1), Some(1)), true),
        (of(Some(2000), Some(100)), of(None, None), true),
        (of(Some(2000), Some(100)), of(Some(2000), Some(100)), true),
        (of(Some(1000), Some(100)), of(Some(2000), Some(100)), false),
        (of(None, Some(99)), of(Some(1), Some(100)), false),
    ];
    for (machine, asked, enough) in table {
        assert_eq!(machine.satisfies(&asked), enough, "{machine:?} for {asked:?}");
    }
    let disk = |bytes| Resources { disk_bytes: bytes, ..Resources::default() };
    for (has, wants, enough) in
        [(None, Some(5), true), (Some(5), Some(5), true), (Some(4), Some(5), false), (Some(4), None, true)]
    {
        assert_eq!(disk(has).satisfies(&disk(wants)), enough, "{has:?} for {wants:?}");
    }
    assert_eq!(disk(Some(20 << 30)).to_string(), "20GB of disk");
}

#[test]
fn gpus_are_asked_for_by_part_of_their_name() {
    let gpu = |text: &str| Gpu::parse(text).unwrap();
    let asked = ["a100", "A100:2", "2"].map(|text| gpu(text).to_string());
    assert_eq!(asked, ["a100:1", "A100:2", "2"]);
    for wrong in ["", ":2", "a100:", "a100:0", "0", "-1", "a100:65", "007", "7:1", "a b", "a/b", "a:b:1"] {
        assert!(Gpu::parse(wrong).is_err(), "{wrong}");
    }
    let host = Gpu { kind: Some("NVIDIA A100-SXM4-40GB".into()), count: 2 };
    let table = [("a100", true), ("a100:2", true), ("2", true), ("a100:3", false), ("h100", false)];
    for (text, enough) in table {
        assert_eq!(host.satisfies(&gpu(text)), enough, "{text}");
    }
    let asked = Resources { gpu: Some(gpu("a100")), ..Resources::default() };
    assert!(!Resources::default().satisfies(&asked), "a machine has none unless it says so");
    assert_eq!(asked.to_string(), "1 × a100");
}

#[test]
fn sizes_are_shown_as_they_are_asked_for() {
    for (bytes, shown) in [(7, "7B"), (1536, "1.5KB"), (512 << 20, "512MB"), ((3 << 30) - 1, "2.9GB")] {
        assert_eq!(show_memory(bytes), shown);
    }
    let host = Resources { cpu_milli: Some(2000), memory_bytes: Some(4 << 30), gpu: None, disk_bytes: None };
    assert_eq!(host.to_string(), "2 cores and 4GB of memory");
    assert_eq!(Resources { cpu_milli: Some(1000), ..Resources::default() }.to_string(), "1 core");
}

#[test]
fn paths_stay_inside() {
    for (path, inside) in
        [("a/b", true), ("a..b", true), ("../a", false), ("a/../../b", false), ("/etc/passwd", false), ("", false)]
    {
        assert_eq!(is_inside(path), inside, "{path}");
    }
}

#[test]
fn a_key_lists_so_many_files_and_a_run_without_a_cache_any_number() {
    let files = |files| Some(TreeRef { hash: "0".repeat(64), files, bytes: 0 });
    let task = || RunSpec::task(Command::Shell("true".into()), "local", "here");
    let cached = |count| RunSpec { files: files(count), call: Some(CallPart::Caller(Cache::default())), ..task() };
    assert_eq!(cached(MAX_CACHED_FILES).check(), Ok(()));
    let refused = cached(MAX_CACHED_FILES + 1).check().unwrap_err().to_string();
    assert!(refused.contains("at most 100000 files: leave out --cache"), "{refused}");
    assert_eq!(RunSpec { files: files(MAX_CACHED_FILES + 1), ..task() }.check(), Ok(()));
}
