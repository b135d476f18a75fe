//! The table of processes, read from `/proc`.

use crate::supervisor::identity::Stat;

/// `None` when there is no such process.
pub(crate) fn stat(pid: u32) -> Option<Stat> {
    parse_stat(pid, &std::fs::read(format!("/proc/{pid}/stat")).ok()?)
}

/// The command may hold blanks and parentheses, so fields are counted after the *last* `)`.
fn parse_stat(pid: u32, stat: &[u8]) -> Option<Stat> {
    let text = String::from_utf8_lossy(stat);
    let (head, rest) = text.rsplit_once(')')?;
    let command = head.split_once('(')?.1.to_owned();
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    Some(Stat {
        pid,
        command,
        state: fields.first()?.chars().next()?,
        parent: fields.get(1)?.parse().ok()?,
        group: fields.get(2)?.parse().ok()?,
        start_ticks: fields.get(19)?.parse().ok()?,
    })
}

/// The living and ended, unreaped children of a process, by the lists of its threads.
pub(crate) fn children(parent: u32) -> Vec<u32> {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{parent}/task")) else { return Vec::new() };
    let mut pids = Vec::new();
    for thread in threads.flatten() {
        match std::fs::read_to_string(thread.path().join("children")) {
            Ok(list) => pids.extend(list.split_ascii_whitespace().filter_map(|pid| pid.parse::<u32>().ok())),
            // A kernel without such lists: the whole table, by parent.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound && thread.path().exists() => return children_by_scan(parent),
            Err(_) => {}
        }
    }
    pids
}

fn children_by_scan(parent: u32) -> Vec<u32> {
    all_pids().filter(|pid| stat(*pid).is_some_and(|stat| stat.parent == parent)).collect()
}

/// Every process of this machine (this pid namespace).
pub(crate) fn all_pids() -> impl Iterator<Item = u32> {
    std::fs::read_dir("/proc").into_iter().flatten().flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_with_parentheses_does_not_shift_the_fields() {
        let line = b"42 (a) b (c)) S 7 42 42 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 98765 1 2 3";
        let stat = parse_stat(42, line).unwrap();
        assert_eq!((stat.command.as_str(), stat.state, stat.parent, stat.group, stat.start_ticks), ("a) b (c)", 'S', 7, 42, 98765));
    }
}
