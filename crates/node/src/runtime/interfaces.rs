//! The interfaces of a gNB or an LWIP node, each in its network namespace.

use super::config::PortDevice;
use super::device;
use super::netctl::{self, Claim, Layer, Net, Step, inside};
use anabranch_engine::device::Device;
use anyhow::Context;
use std::path::PathBuf;

const MAIN_TABLE: u32 = 254;

/// An interface that was created, with what is needed to remove it.
pub struct OpenInterface {
    netns: Option<PathBuf>,
    layers: Vec<Layer>,
    _claim: Claim,
}

/// Creates an interface; `mtu` is the default of its MTU.
pub fn open(port: &PortDevice, mtu: u16) -> anyhow::Result<(Device, OpenInterface)> {
    let netns = port.netns();
    let mtu = port.mtu.unwrap_or(mtu);
    let (device, layers, claim) = inside(netns.as_deref(), || {
        runtime()?.block_on(async {
            let claim = Claim::device(&port.name)?;
            let net = Net::open()?;
            let mut layers = Vec::new();
            let made = make(&net, port, mtu, &mut layers).await;
            if made.is_err() {
                undo(&net, layers.drain(..)).await;
            }
            made.map(|device| (device, layers, claim))
        })
    })
    .with_context(|| format!("device {}", port.name))?;
    Ok((device, OpenInterface { netns, layers, _claim: claim }))
}

async fn make(net: &Net, port: &PortDevice, mtu: u16, layers: &mut Vec<Layer>) -> anyhow::Result<Device> {
    net.clean(&port.name, None, true).await?;
    let (inner, namespace) = netctl::inner_end(&port.device());
    layers.push(net.apply(inner).await?);
    let device = device::open(&port.device(), mtu, 1, namespace.as_ref())?.remove(0);
    let name = || port.name.clone();
    let mut plan = vec![Step::Up { device: name(), mtu }];
    plan.extend(port.addresses.iter().map(|address| Step::Address { device: name(), address: *address }));
    plan.extend(port.routes.iter().map(|to| Step::Route { device: name(), to: *to, table: MAIN_TABLE }));
    layers.push(net.apply(plan).await?);
    Ok(device)
}

impl OpenInterface {
    /// Removes the interface. A TUN interface is removed with its [`Device`].
    pub fn remove(self) {
        let Self { netns, layers, _claim } = self;
        let done = inside(netns.as_deref(), || {
            runtime()?.block_on(async {
                undo(&Net::open()?, layers.into_iter()).await;
                Ok(())
            })
        });
        if let Err(error) = done {
            // If the namespace no longer exists, neither do its interfaces.
            tracing::debug!("removing an interface: {error:#}");
        }
    }
}

async fn undo(net: &Net, layers: impl DoubleEndedIterator<Item = Layer>) {
    for layer in layers.rev() {
        net.undo(layer).await;
    }
}

fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    Ok(tokio::runtime::Builder::new_current_thread().enable_all().build()?)
}
