//! A batch socket for the packets of one interface: packet(7) with recvmmsg(2) and sendmmsg(2).
//!
//! The access emulator (`anabranch link`) reads and writes whole Ethernet frames with it; a UE without
//! TUN reads and writes the IP packets of a veth pair ([`Framing::Ip`]). One system call moves up to
//! [`Options::batch`] packets, into and out of memory that is allocated once.

mod filter;

pub use filter::PacketFilter;

use crate::interface;
use std::io;
use std::mem::{size_of, zeroed};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;

/// Size of a VLAN tag (IEEE 802.1Q): EtherType and tag control information.
const TAG_BYTES: usize = 4;
/// Destination and source address of a frame; a tag follows them.
const MACS_BYTES: usize = 12;

/// Length of struct virtio_net_hdr (virtio 1.2 §5.1.6), which describes a frame of offload.
pub const VNET_BYTES: usize = 10;
/// Offset in it of the start of the checksum, two bytes in machine byte order.
const CHECKSUM_START: usize = 6;
/// Length of the longest frame of segmentation offload: a packet of 64 KiB, an Ethernet header and two tags.
const MAX_FRAME_BYTES: usize = 65536 + 14 + 2 * TAG_BYTES;

/// Room for both requested control messages, with slack.
const CONTROL_BYTES: usize = 128;

/// Contents of a packet of the socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Framing {
    /// Ethernet frames, header and VLAN tags included, without the frame check sequence.
    Ethernet,
    /// IPv4 and IPv6 packets. Outgoing ones are addressed to the MAC address `peer`; incoming frames of
    /// other protocols (ARP) are dropped.
    Ip {
        /// The far end of the veth pair.
        peer: [u8; 6],
    },
}

/// Parameters of a [`PacketSocket`].
#[derive(Debug, Clone)]
pub struct Options {
    /// Contents of a packet.
    pub framing: Framing,
    /// Packets per system call, 1 to 64.
    pub batch: usize,
    /// Maximum packet size in bytes. Longer packets are truncated (see [`Received::wire_bytes`]).
    pub slot_bytes: usize,
    /// Kernel receive buffer in bytes; limited to `net.core.rmem_max` without the permission to exceed it.
    pub buffer_bytes: usize,
    /// Reads frames of segmentation offload, which are longer than `slot_bytes`, whole and with the header that says how they are to
    /// be split ([`Received::vnet`]).
    pub offload: bool,
    /// The packets to read. The kernel drops the others before they are copied.
    pub filter: PacketFilter,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            framing: Framing::Ethernet,
            batch: 32,
            slot_bytes: 2048,
            buffer_bytes: 8 << 20,
            offload: false,
            filter: PacketFilter::All,
        }
    }
}

/// One received packet.
#[derive(Debug)]
pub struct Received<'a> {
    /// Its bytes, at most [`Options::slot_bytes`], or 64 KiB with [`Options::offload`].
    pub bytes: &'a mut [u8],
    /// With [`Options::offload`], struct virtio_net_hdr, with offsets from the start of `bytes`; otherwise zeros.
    pub vnet: [u8; VNET_BYTES],
    /// Its length before truncation.
    pub wire_bytes: usize,
    /// When the kernel received it, in nanoseconds of `CLOCK_MONOTONIC`. Earlier than the current time if the process was late.
    pub arrived_ns: u64,
    /// Its transport checksum was left to non-existent hardware: checksum offload is still enabled on the sender's interface.
    pub partial_checksum: bool,
}

/// Result of a [`PacketSocket::flush`].
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Flushed {
    /// Packets passed to the interface.
    pub sent: usize,
    /// Packets refused by the interface (down, no buffer, longer than the MTU).
    pub dropped: usize,
}

/// A non-blocking socket bound to one interface. Packets sent by the host itself on that interface are not received.
#[derive(Debug)]
pub struct PacketSocket {
    fd: OwnedFd,
    offload: bool,
    /// Maximum size of a packet that is read.
    rx_slot_bytes: usize,
    /// Maximum size of a packet that is sent.
    slot_bytes: usize,
    batch: usize,
    /// For [`Framing::Ip`]: the link-layer addresses for IPv4 and for IPv6 packets.
    to: Option<[libc::sockaddr_ll; 2]>,
    rx: Box<[u8]>,
    rx_vnet: Box<[[u8; VNET_BYTES]]>,
    control: Box<[Control]>,
    tx: Box<[u8]>,
    tx_len: Vec<usize>,
}

#[repr(C, align(8))]
#[derive(Debug, Clone, Copy)]
struct Control([u8; CONTROL_BYTES]);

impl PacketSocket {
    /// Opens a socket on `interface` in the calling thread's network namespace. Requires `CAP_NET_RAW` there.
    pub fn open(interface: &str, options: &Options) -> io::Result<Self> {
        let index = interface::index(interface)?;
        let kind = match options.framing {
            Framing::Ethernet => libc::SOCK_RAW,
            Framing::Ip { .. } => libc::SOCK_DGRAM,
        };
        // Protocol 0: nothing is queued before bind() sets the interface.
        // SAFETY: socket() takes no pointers.
        let raw =
            unsafe { libc::socket(libc::AF_PACKET, kind | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC, 0) };
        if raw < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: `raw` was just returned by socket() and belongs to nobody else.
        let fd = unsafe { OwnedFd::from_raw_fd(raw) };

        let buffer = libc::c_int::try_from(options.buffer_bytes).unwrap_or(libc::c_int::MAX);
        if set_option(raw, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, buffer).is_err() {
            set_option(raw, libc::SOL_SOCKET, libc::SO_RCVBUF, buffer)?;
        }
        if set_option(raw, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, buffer).is_err() {
            set_option(raw, libc::SOL_SOCKET, libc::SO_SNDBUF, buffer)?;
        }
        set_option(raw, libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, 1)?;
        set_option(raw, libc::SOL_PACKET, libc::PACKET_AUXDATA, 1)?;
        set_option(raw, libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, 1)?;
        set_option(raw, libc::SOL_PACKET, libc::PACKET_QDISC_BYPASS, 1)?;
        if options.offload {
            set_option(raw, libc::SOL_PACKET, libc::PACKET_VNET_HDR, 1)?;
        }

        if let PacketFilter::HopByHop = options.filter {
            filter::hop_by_hop(&fd, options.framing)?;
        }

        let any = link_address(index, libc::ETH_P_ALL as u16, [0; 6]);
        // SAFETY: the pointer and the length describe `any`, which outlives the call.
        let bound = unsafe {
            libc::bind(raw, ptr::from_ref(&any).cast(), size_of::<libc::sockaddr_ll>() as libc::socklen_t)
        };
        if bound < 0 {
            return Err(io::Error::last_os_error());
        }

        let batch = options.batch.clamp(1, MAX_BATCH);
        let to = match options.framing {
            Framing::Ethernet => None,
            Framing::Ip { peer } => Some([
                link_address(index, libc::ETH_P_IP as u16, peer),
                link_address(index, libc::ETH_P_IPV6 as u16, peer),
            ]),
        };
        let slot_bytes = options.slot_bytes.max(64);
        let rx_slot_bytes = if options.offload { slot_bytes.max(MAX_FRAME_BYTES) } else { slot_bytes };
        Ok(Self {
            fd,
            offload: options.offload,
            rx_slot_bytes,
            slot_bytes,
            batch,
            to,
            rx: vec![0; batch * (TAG_BYTES + rx_slot_bytes)].into_boxed_slice(),
            rx_vnet: vec![[0; VNET_BYTES]; batch].into_boxed_slice(),
            control: vec![Control([0; CONTROL_BYTES]); batch].into_boxed_slice(),
            tx: vec![0; batch * slot_bytes].into_boxed_slice(),
            tx_len: Vec::with_capacity(batch),
        })
    }

    /// Passes up to one batch of waiting packets to `each`, oldest first, and returns their number (0: none was waiting, or the
    /// interface is down).
    pub fn recv(&mut self, mut each: impl FnMut(Received<'_>)) -> io::Result<usize> {
        let mut headers = [const { Header::EMPTY }; MAX_BATCH];
        let mut vectors = [const { Vectors::EMPTY }; MAX_BATCH];
        let batch = self.batch;
        let offload = self.offload;
        let slots = self.rx.chunks_exact_mut(TAG_BYTES + self.rx_slot_bytes).zip(self.rx_vnet.iter_mut());
        let slots = slots.zip(self.control.iter_mut());
        for (((slot, vnet), control), (header, vectors)) in
            slots.zip(headers.iter_mut().zip(vectors.iter_mut())).take(batch)
        {
            vectors.describe(&mut header.0.msg_hdr, offload.then_some(vnet), &mut slot[TAG_BYTES..]);
            header.0.msg_hdr.msg_control = control.0.as_mut_ptr().cast();
            header.0.msg_hdr.msg_controllen = CONTROL_BYTES as _;
        }
        // SAFETY: the first `batch` headers describe distinct slots and control buffers that live, and
        // are not touched otherwise, until the call returns; Header is transparent over mmsghdr.
        let n = unsafe {
            libc::recvmmsg(
                self.fd.as_raw_fd(),
                headers.as_mut_ptr().cast(),
                batch as libc::c_uint,
                libc::MSG_TRUNC,
                ptr::null_mut(),
            )
        };
        let Ok(n) = usize::try_from(n) else {
            let error = io::Error::last_os_error();
            return match error.raw_os_error() {
                // ENETDOWN is reported once when the interface goes down; the socket works again when it is up. EINVAL: the kernel has
                // dropped a frame of an offload that struct virtio_net_hdr does not describe.
                Some(libc::EAGAIN | libc::EINTR | libc::ENETDOWN | libc::EINVAL) => Ok(0),
                _ => Err(error),
            };
        };
        // The kernel stamps packets with the wall clock. The difference to the monotonic clock is determined here, so that a step of the
        // wall clock affects at most one batch.
        let now = clock(libc::CLOCK_MONOTONIC);
        let ahead = clock(libc::CLOCK_REALTIME).wrapping_sub(now);
        let ip_only = self.to.is_some();
        let slots = self.rx.chunks_exact_mut(TAG_BYTES + self.rx_slot_bytes).zip(&self.rx_vnet);
        for ((slot, vnet), header) in slots.zip(&headers[..n]) {
            // SAFETY: the header was filled in by the kernel, and its control buffer is still alive.
            let ancillary = unsafe { control_messages(&header.0.msg_hdr) };
            let vnet_bytes = if offload { VNET_BYTES } else { 0 };
            let (mut wire_bytes, mut start) =
                ((header.0.msg_len as usize).saturating_sub(vnet_bytes), TAG_BYTES);
            let mut vnet = *vnet;
            if let Some(tag) = ancillary.tag.filter(|_| !ip_only && wire_bytes >= MACS_BYTES) {
                slot.copy_within(TAG_BYTES..TAG_BYTES + MACS_BYTES, 0);
                slot[MACS_BYTES..MACS_BYTES + TAG_BYTES].copy_from_slice(&tag);
                (wire_bytes, start) = (wire_bytes + TAG_BYTES, 0);
                move_checksum_start(&mut vnet);
            }
            let bytes = &mut slot[start..][..wire_bytes.min(self.rx_slot_bytes)];
            if ip_only && !matches!(bytes.first().map(|b| b >> 4), Some(4 | 6)) {
                continue;
            }
            let arrived_ns = ancillary.stamp.map_or(now, |s| s.wrapping_sub(ahead)).min(now);
            each(Received {
                bytes,
                vnet,
                wire_bytes,
                arrived_ns,
                partial_checksum: ancillary.partial_checksum,
            });
        }
        Ok(n)
    }

    /// Packets per system call. If [`recv`](Self::recv) returns fewer, the socket is empty.
    #[must_use]
    pub fn batch(&self) -> usize {
        self.batch
    }

    /// Number of packets that can be [`push`](Self::push)ed before the next [`flush`](Self::flush).
    #[must_use]
    pub fn room(&self) -> usize {
        self.batch - self.tx_len.len()
    }

    /// Copies `packet` into the batch to be sent. Returns `false` if there is no [`room`](Self::room), the packet is longer than a slot,
    /// or (with [`Framing::Ip`]) it is not an IP packet.
    #[must_use]
    pub fn push(&mut self, packet: &[u8]) -> bool {
        let ip = matches!(packet.first().map(|b| b >> 4), Some(4 | 6));
        if self.room() == 0 || packet.len() > self.slot_bytes || (self.to.is_some() && !ip) {
            return false;
        }
        let at = self.tx_len.len() * self.slot_bytes;
        self.tx[at..at + packet.len()].copy_from_slice(packet);
        self.tx_len.push(packet.len());
        true
    }

    /// Sends the batch in order. Packets refused by the interface are dropped and counted; errors are those of the socket itself.
    pub fn flush(&mut self) -> io::Result<Flushed> {
        let mut outcome = Flushed::default();
        while outcome.sent + outcome.dropped < self.tx_len.len() {
            match self.send_from(outcome.sent + outcome.dropped) {
                Ok(n) => outcome.sent += n,
                Err(error) => match error.raw_os_error() {
                    Some(libc::EINTR) => {}
                    Some(
                        libc::EAGAIN
                        | libc::ENOBUFS
                        | libc::ENETDOWN
                        | libc::ENXIO
                        | libc::EMSGSIZE
                        | libc::EINVAL,
                    ) => outcome.dropped += 1,
                    _ => {
                        self.tx_len.clear();
                        return Err(error);
                    }
                },
            }
        }
        self.tx_len.clear();
        Ok(outcome)
    }

    /// Number of packets dropped by the kernel for lack of buffers since the last call.
    pub fn kernel_drops(&self) -> io::Result<u64> {
        // SAFETY: an all-zero tpacket_stats is a valid value.
        let mut stats: libc::tpacket_stats = unsafe { zeroed() };
        let mut len = size_of::<libc::tpacket_stats>() as libc::socklen_t;
        // SAFETY: the pointers describe `stats` and `len`, which outlive the call.
        let result = unsafe {
            libc::getsockopt(
                self.fd.as_raw_fd(),
                libc::SOL_PACKET,
                libc::PACKET_STATISTICS,
                (&raw mut stats).cast(),
                &raw mut len,
            )
        };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(u64::from(stats.tp_drops)) }
    }

    /// The index of its interface, even if renamed; `None` if the interface has been removed. A later interface with the same name
    /// needs another socket.
    #[must_use]
    pub fn index(&self) -> Option<u32> {
        // SAFETY: an all-zero sockaddr_ll is a valid value.
        let mut name: libc::sockaddr_ll = unsafe { zeroed() };
        let mut len = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
        // SAFETY: the pointers describe `name` and `len`, which outlive the call.
        let result =
            unsafe { libc::getsockname(self.fd.as_raw_fd(), ptr::from_mut(&mut name).cast(), &raw mut len) };
        // The index becomes 0 when the interface is removed.
        u32::try_from(name.sll_ifindex).ok().filter(|index| result == 0 && *index > 0)
    }

    fn send_from(&mut self, first: usize) -> io::Result<usize> {
        let mut headers = [const { Header::EMPTY }; MAX_BATCH];
        let mut vectors = [const { Vectors::EMPTY }; MAX_BATCH];
        // Whatever is sent is one packet with its checksum.
        let mut whole = [0; VNET_BYTES];
        let count = self.tx_len.len() - first;
        let slots = self.tx.chunks_exact_mut(self.slot_bytes).zip(&self.tx_len).skip(first);
        for ((slot, &len), (header, vectors)) in
            slots.zip(headers.iter_mut().zip(vectors.iter_mut())).take(count)
        {
            if let Some(to) = &mut self.to {
                let name = &mut to[usize::from(slot[0] >> 4 == 6)];
                header.0.msg_hdr.msg_name = ptr::from_mut(name).cast();
                header.0.msg_hdr.msg_namelen = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
            }
            vectors.describe(&mut header.0.msg_hdr, self.offload.then_some(&mut whole), &mut slot[..len]);
        }
        // SAFETY: the first `count` headers describe slots of `tx` and addresses in `to` that live, and
        // are only read by the kernel, until the call returns.
        let n = unsafe {
            libc::sendmmsg(self.fd.as_raw_fd(), headers.as_mut_ptr().cast(), count as libc::c_uint, 0)
        };
        usize::try_from(n).map_err(|_| io::Error::last_os_error())
    }
}

impl AsFd for PacketSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl AsRawFd for PacketSocket {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

/// Headers are on the stack of each call: the socket contains no self-references.
const MAX_BATCH: usize = 64;

#[repr(transparent)]
#[derive(Clone, Copy)]
struct Header(libc::mmsghdr);

/// Where the parts of one message are: struct virtio_net_hdr, if any, and the packet.
#[derive(Clone, Copy)]
struct Vectors([libc::iovec; 2]);

impl Header {
    // SAFETY: an all-zero mmsghdr (null pointers, zero lengths) is a valid value.
    const EMPTY: Self = Self(unsafe { zeroed() });
}

impl Vectors {
    // SAFETY: all-zero iovecs (null pointers, zero lengths) are valid values.
    const EMPTY: Self = Self(unsafe { zeroed() });

    /// Enters the parts into `header`, which then points to `self`.
    fn describe(
        &mut self,
        header: &mut libc::msghdr,
        vnet: Option<&mut [u8; VNET_BYTES]>,
        packet: &mut [u8],
    ) {
        let part =
            |bytes: &mut [u8]| libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
        let first = usize::from(vnet.is_none());
        if let Some(vnet) = vnet {
            self.0[0] = part(vnet);
        }
        self.0[1] = part(packet);
        let parts = &mut self.0[first..];
        header.msg_iov = parts.as_mut_ptr();
        header.msg_iovlen = parts.len() as _;
    }
}

/// Accounts for a tag that is reinserted before the checksum's start, which is 0 if nothing is left to do.
fn move_checksum_start(vnet: &mut [u8; VNET_BYTES]) {
    let [a, b] = [vnet[CHECKSUM_START], vnet[CHECKSUM_START + 1]];
    let start = u16::from_ne_bytes([a, b]);
    if start > 0 {
        let moved = start.saturating_add(TAG_BYTES as u16);
        vnet[CHECKSUM_START..CHECKSUM_START + 2].copy_from_slice(&moved.to_ne_bytes());
    }
}

/// Ancillary data of a received packet.
#[derive(Default)]
struct AncillaryData {
    /// Wall-clock time stamp (ns).
    stamp: Option<u64>,
    /// The checksum is incomplete.
    partial_checksum: bool,
    /// The outermost VLAN tag, which the kernel removes from every received frame.
    tag: Option<[u8; TAG_BYTES]>,
}

/// Reads the ancillary data.
///
/// # Safety
/// `header` must have been filled in by a successful receive and its control buffer must be alive.
unsafe fn control_messages(header: &libc::msghdr) -> AncillaryData {
    let mut ancillary = AncillaryData::default();
    // SAFETY: by the contract above the control buffer is alive and holds well-formed messages.
    let mut message = unsafe { libc::CMSG_FIRSTHDR(header) };
    while !message.is_null() {
        // SAFETY: CMSG_FIRSTHDR and CMSG_NXTHDR return null or a message inside the buffer.
        let (level, kind, len) =
            unsafe { ((*message).cmsg_level, (*message).cmsg_type, (*message).cmsg_len as usize) };
        // SAFETY: as above; the data follows the header inside the buffer.
        let data = unsafe { libc::CMSG_DATA(message) };
        // SAFETY: CMSG_LEN only computes.
        let holds = |bytes: usize| len >= unsafe { libc::CMSG_LEN(bytes as libc::c_uint) } as usize;
        if level == libc::SOL_SOCKET && kind == libc::SCM_TIMESTAMPNS && holds(size_of::<libc::timespec>()) {
            // SAFETY: the length was checked; the data need not be aligned.
            let t: libc::timespec = unsafe { ptr::read_unaligned(data.cast()) };
            ancillary.stamp = Some(t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64);
        } else if level == libc::SOL_PACKET
            && kind == libc::PACKET_AUXDATA
            && holds(size_of::<libc::tpacket_auxdata>())
        {
            // SAFETY: the length was checked; the data need not be aligned.
            let aux: libc::tpacket_auxdata = unsafe { ptr::read_unaligned(data.cast()) };
            ancillary.partial_checksum = aux.tp_status & libc::TP_STATUS_CSUMNOTREADY != 0;
            if aux.tp_status & libc::TP_STATUS_VLAN_VALID != 0 {
                let has_tpid = aux.tp_status & libc::TP_STATUS_VLAN_TPID_VALID != 0;
                let kind = if has_tpid { aux.tp_vlan_tpid } else { libc::ETH_P_8021Q as u16 };
                let ([a, b], [c, d]) = (kind.to_be_bytes(), aux.tp_vlan_tci.to_be_bytes());
                ancillary.tag = Some([a, b, c, d]);
            }
        }
        // SAFETY: `message` is a message of `header`.
        message = unsafe { libc::CMSG_NXTHDR(header, message) };
    }
    ancillary
}

fn clock(id: libc::clockid_t) -> u64 {
    // SAFETY: an all-zero timespec is a valid value.
    let mut t: libc::timespec = unsafe { zeroed() };
    // SAFETY: the pointer is to `t`; both clocks exist on every Linux.
    unsafe { libc::clock_gettime(id, &raw mut t) };
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

fn link_address(index: u32, protocol: u16, mac: [u8; 6]) -> libc::sockaddr_ll {
    // SAFETY: an all-zero sockaddr_ll is a valid value.
    let mut address: libc::sockaddr_ll = unsafe { zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = protocol.to_be();
    address.sll_ifindex = index as libc::c_int;
    address.sll_halen = 6;
    address.sll_addr[..6].copy_from_slice(&mac);
    address
}

fn set_option(fd: RawFd, level: libc::c_int, name: libc::c_int, value: libc::c_int) -> io::Result<()> {
    // SAFETY: the pointer and the length describe `value`, which outlives the call.
    let result = unsafe {
        libc::setsockopt(
            fd,
            level,
            name,
            ptr::from_ref(&value).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::in_private_network;

    fn drain(socket: &mut PacketSocket) -> Vec<Vec<u8>> {
        let mut got = Vec::new();
        while socket.recv(|r| got.push(r.bytes.to_vec())).unwrap() > 0 {}
        got
    }

    #[test]
    fn frames_cross_a_veth_pair_in_order_and_truncated_ones_are_reported() {
        in_private_network("ip link add va type veth peer vb; ip link set va up; ip link set vb up", || {
            let options = Options { batch: 4, slot_bytes: 256, ..Options::default() };
            let mut a = PacketSocket::open("va", &options).unwrap();
            let mut b = PacketSocket::open("vb", &Options { batch: 8, ..options.clone() }).unwrap();
            drain(&mut b);
            let before = clock(libc::CLOCK_MONOTONIC);
            for round in 0..3u8 {
                for i in 0..4u8 {
                    let mut frame = [0xee; 100];
                    frame[12..14].copy_from_slice(&[0x88, 0xb5]); // local experimental
                    frame[14..16].copy_from_slice(&[round, i]);
                    assert!(a.push(&frame));
                }
                assert!(!a.push(&[0; 64]), "the batch is full");
                assert_eq!(a.flush().unwrap(), Flushed { sent: 4, dropped: 0 });
            }
            let mut got = Vec::new();
            while b
                .recv(|r| {
                    if r.bytes[12..14] == [0x88, 0xb5] {
                        assert!(r.arrived_ns >= before && r.arrived_ns <= clock(libc::CLOCK_MONOTONIC));
                        assert_eq!(r.wire_bytes, 100);
                        got.push((r.bytes[14], r.bytes[15]));
                    }
                })
                .unwrap()
                > 0
            {}
            let expected: Vec<_> = (0..3).flat_map(|r| (0..4).map(move |i| (r, i))).collect();
            assert_eq!(got, expected);

            // A frame longer than the slot is truncated, and its true length is reported.
            let mut big = PacketSocket::open("vb", &Options::default()).unwrap();
            let mut frame = [0xee; 1000];
            frame[12..14].copy_from_slice(&[0x88, 0xb5]);
            assert!(big.push(&frame));
            assert_eq!(big.flush().unwrap().sent, 1);
            let mut lengths = Vec::new();
            a.recv(|r| {
                if r.bytes[12..14] == [0x88, 0xb5] {
                    lengths.push((r.bytes.len(), r.wire_bytes));
                }
            })
            .unwrap();
            assert_eq!(lengths, [(256, 1000)]);
        });
    }

    /// The kernel removes the outermost tag of received frames; it is reinserted here.
    #[test]
    fn tagged_frames_are_whole() {
        in_private_network("ip link add va type veth peer vb; ip link set va up; ip link set vb up", || {
            let options = Options { slot_bytes: 1600, ..Options::default() };
            let mut a = PacketSocket::open("va", &options).unwrap();
            let mut b = PacketSocket::open("vb", &options).unwrap();
            let ip = Options { framing: Framing::Ip { peer: [0; 6] }, ..Options::default() };
            let mut bare = PacketSocket::open("vb", &ip).unwrap();
            let (q, ad) = ([0x81, 0, 0x60, 7], [0x88, 0xa8, 0, 9]);
            // The kernel sends one customer tag in addition to a packet of the MTU.
            let tagged =
                [(&[][..], 1500), (&[q][..], 1500), (&[ad], 1496), (&[ad, q], 1492), (&[q, q, ad], 1400)];
            let frames = tagged.map(|(tags, len)| {
                let macs = [2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1];
                [&macs[..], &tags.concat(), &[0x08, 0x00], &vec![0x45; len]].concat()
            });
            drain(&mut b);
            for frame in &frames {
                assert!(a.push(frame));
            }
            assert_eq!(a.flush().unwrap(), Flushed { sent: frames.len(), dropped: 0 });
            let got: Vec<_> =
                drain(&mut b).into_iter().filter(|frame| frame.ends_with(&[0x45; 1400])).collect();
            assert_eq!(got, frames);
            // Without a header there is no tag.
            let got: Vec<_> =
                drain(&mut bare).into_iter().filter(|packet| packet.starts_with(&[0x45; 1400])).collect();
            assert_eq!(got.iter().map(Vec::len).collect::<Vec<_>>(), [1500, 1500, 1496]);
        });
    }

    #[test]
    fn an_interface_that_is_down_drops_and_works_again() {
        in_private_network("ip link add va type veth peer vb; ip link set va up; ip link set vb up", || {
            let mut a = PacketSocket::open("va", &Options::default()).unwrap();
            let mut b = PacketSocket::open("vb", &Options::default()).unwrap();
            crate::interface::set_up("va", false).unwrap();
            assert!(a.push(&[0xee; 60]));
            assert_eq!(a.flush().unwrap(), Flushed { sent: 0, dropped: 1 });
            drain(&mut a);
            drain(&mut b);
            crate::interface::set_up("va", true).unwrap();
            assert!(a.push(&[0xee; 60]));
            assert_eq!(a.flush().unwrap().sent, 1);
            assert!(drain(&mut b).contains(&vec![0xee; 60]));
        });
    }

    #[test]
    fn a_removed_interface_is_detected() {
        in_private_network("ip link add va type veth peer vb; ip link set va up; ip link set vb up", || {
            let mut a = PacketSocket::open("va", &Options::default()).unwrap();
            drain(&mut a);
            crate::interface::set_up("va", false).unwrap();
            assert!(a.index().is_some(), "it is down, and there");
            let ip = |words: &str| {
                let status = std::process::Command::new("ip").args(words.split(' ')).status().unwrap();
                assert!(status.success(), "{words}");
            };
            ip("link del va");
            assert_eq!(a.index(), None);
            ip("link add va type veth peer vb");
            assert_eq!(a.index(), None, "another of the name");
            let anew = PacketSocket::open("va", &Options::default()).unwrap();
            let index = crate::interface::index("va").unwrap();
            ip("link set va name vc");
            assert_eq!(anew.index(), Some(index), "it is called otherwise, and there");
        });
    }

    #[test]
    fn ip_framing_accepts_and_returns_bare_ip_packets() {
        in_private_network(
            "ip link add va address 02:00:00:00:00:0a type veth peer vb address 02:00:00:00:00:0b;
             ip link set va up; ip link set vb up",
            || {
                let peer = crate::interface::mac("vb").unwrap();
                assert_eq!(peer, [2, 0, 0, 0, 0, 0x0b]);
                let options = Options { framing: Framing::Ip { peer }, ..Options::default() };
                let mut a = PacketSocket::open("va", &options).unwrap();
                let mut b = PacketSocket::open("vb", &Options::default()).unwrap();
                drain(&mut b);
                let v4 = [0x45; 40];
                let v6 = [0x60; 60];
                assert!(a.push(&v4) && a.push(&v6));
                assert!(!a.push(&[0x15; 40]), "not an IP packet");
                assert_eq!(a.flush().unwrap().sent, 2);
                let got = drain(&mut b);
                let frame = |kind: [u8; 2], packet: &[u8]| {
                    [&[2, 0, 0, 0, 0, 0x0b, 2, 0, 0, 0, 0, 0x0a], &kind[..], packet].concat()
                };
                assert!(got.contains(&frame([0x08, 0x00], &v4)));
                assert!(got.contains(&frame([0x86, 0xdd], &v6)));

                drain(&mut a);
                for kind in [[0x08, 0x06], [0x08, 0x00]] {
                    let mut f = frame(kind, if kind == [0x08, 0x00] { &v4 } else { &[0; 28] });
                    f[..12].rotate_left(6);
                    assert!(b.push(&f));
                }
                b.flush().unwrap();
                let got = drain(&mut a);
                assert!(got.contains(&v4.to_vec()));
                assert!(got.iter().all(|p| p[0] >> 4 == 4 || p[0] >> 4 == 6), "no ARP");
            },
        );
    }

    #[test]
    fn an_unknown_interface_is_named() {
        let error = PacketSocket::open("no-such-if0", &Options::default()).unwrap_err().to_string();
        assert!(error.contains("no-such-if0"), "{error}");
    }
}
