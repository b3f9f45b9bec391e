//! A large repository: what a push sends does not grow with it. `REMOTE_OBJECTS=1000000` in `scripts/calls`.

use crate::world::{Origin, Watched, folder, head, whole};
use adapters::remote::{Access, Remote};
use std::sync::Arc;
use std::time::Instant;

#[test]
fn a_push_of_ten_sends_ten_however_much_is_there() {
    let objects: i64 = std::env::var("REMOTE_OBJECTS").map_or(20_000, |count| count.parse().unwrap());
    let (folder, mut origin) = (folder(), Origin::default());
    let bucket = Arc::new(Watched::new(folder.path()));
    // In commits of a thousand: a dag of a million names is another limit.
    let mut last = None;
    for first in (0..objects).step_by(1_000) {
        last = Some(origin.commit(first..first + 1_000.min(objects - first), last.as_slice()));
    }
    let base = last.unwrap();
    let remote = Remote::at(bucket.clone(), Access::Write).unwrap();
    let began = Instant::now();
    let pushed = remote.push(&mut origin, &head("main"), base, false).unwrap();
    println!("{} objects, {} bytes, {} segments: {:?}", pushed.objects, pushed.bytes, pushed.segments, began.elapsed());
    assert!(pushed.objects as i64 >= objects);
    let next = origin.commit(objects..objects + 7, &[base]);
    // Another process: it knows nothing of what is there.
    let remote = Remote::at(bucket.clone(), Access::Write).unwrap();
    bucket.begin_again();
    let began = Instant::now();
    let pushed = remote.push(&mut origin, &head("main"), next, false).unwrap();
    println!("ten more: {:?}", began.elapsed());
    assert_eq!((pushed.objects, bucket.writes()), (10, [1, 1, 0, 1]));
    assert!(pushed.bytes < 10_000, "{} bytes", pushed.bytes);
    let began = Instant::now();
    let found = whole(&mut remote.fetch(&head("main")).unwrap());
    println!("{} objects were read and checked: {:?}", found.objects.len(), began.elapsed());
}
