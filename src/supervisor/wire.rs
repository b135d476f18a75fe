//! Messages over the lifeline, with descriptors going along.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, SendAncillaryBuffer, SendAncillaryMessage, recvmsg, send, sendmsg};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::plan::{LENGTH_BYTES, decode_length, encode};
use super::platform;

/// Descriptors that one message may carry: the lock and what is handed over.
pub(crate) const DESCRIPTORS_MAX: usize = 16;

/// Sends a message; the descriptors go with its first byte.
pub(crate) fn send_message(socket: impl AsFd, message: &impl Serialize, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    if descriptors.len() > DESCRIPTORS_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "too many descriptors to pass on"));
    }
    let bytes = encode(message)?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        ancillary.push(SendAncillaryMessage::ScmRights(descriptors));
    }
    let mut sent = loop {
        match sendmsg(&socket, &[IoSlice::new(&bytes)], &mut ancillary, platform::NO_SIGNAL) {
            Ok(sent) => break sent,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    };
    while sent < bytes.len() {
        match send(&socket, &bytes[sent..], platform::NO_SIGNAL) {
            Ok(more) => sent += more,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Reads one message and what came with it. `UnexpectedEof` when the other end is gone.
pub(crate) fn receive_message<T: DeserializeOwned>(socket: impl AsFd) -> io::Result<(T, Vec<OwnedFd>)> {
    let mut descriptors = Vec::new();
    let mut prefix = [0; LENGTH_BYTES];
    fill(&socket, &mut prefix, &mut descriptors)?;
    let mut body = vec![0; decode_length(prefix)?];
    fill(&socket, &mut body, &mut descriptors)?;
    Ok((serde_json::from_slice(&body)?, descriptors))
}

fn fill(socket: &impl AsFd, buffer: &mut [u8], descriptors: &mut Vec<OwnedFd>) -> io::Result<()> {
    let mut done = 0;
    while done < buffer.len() {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let received = match recvmsg(socket, &mut [IoSliceMut::new(&mut buffer[done..])], &mut ancillary, platform::receive_flags()) {
            Ok(received) => received.bytes,
            Err(rustix::io::Errno::INTR) => continue,
            Err(error) => return Err(error.into()),
        };
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(passed) = message {
                for received in passed {
                    platform::shield(&received)?;
                    descriptors.push(received);
                }
            }
        }
        if received == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        done += received;
    }
    Ok(())
}
