// The MCS 28 scenario of scenarios/papers/rlc/table2-mcs28.toml (vanilla) with the LTE module of ns-3 3.37.
//
//   server ── 10 Gbit/s, delay ── PGW ── SGW ── eNB ~~~ UE        one cell of 25 RBs, one UE close to the eNB
//
// One bulk TCP flow (CUBIC, SACK) runs from the server to the UE over one bearer, RLC UM with a buffer of 1 MB. A VoIP
// call of 172 bytes every 20 ms starts five seconds later. CQI 15 of a UE at 50 m corresponds to MCS 28.
//
// The program is optimised for speed, because its run time is measured: no traces, no logs, no fading, ideal RRC, no
// queueing disciplines on the wires, large writes of the application, the fastest event scheduler. `--features=pared`
// (the default) also disables default features of the LTE module that the scenario does not need: error models of data
// and control, uplink power control, detection of radio link failure, frequent sounding reference signals.
// `--features=default` keeps them. Only `--check` connects one trace, to print the MCS that was used.

#include "ns3/applications-module.h"
#include "ns3/core-module.h"
#include "ns3/internet-module.h"
#include "ns3/lte-module.h"
#include "ns3/mobility-module.h"
#include "ns3/network-module.h"
#include "ns3/point-to-point-module.h"
#include "ns3/traffic-control-module.h"

#include <chrono>
#include <cstdio>
#include <map>

using namespace ns3;

namespace
{

constexpr uint16_t TCP_PORT = 5001;
constexpr uint16_t UDP_PORT = 5002;
constexpr uint32_t RLC_BUFFER_BYTES = 1'000'000;
constexpr uint32_t TCP_BUFFER_BYTES = 16 << 20;
constexpr double VOIP_START_S = 5.0;

/// Transport blocks of the downlink by MCS.
std::map<uint32_t, uint64_t> g_blocks;

void
NoteBlock(DlSchedulingCallbackInfo info)
{
    ++g_blocks[info.mcsTb1];
}

void
PareDown()
{
    Config::SetDefault("ns3::LteSpectrumPhy::CtrlErrorModelEnabled", BooleanValue(false));
    Config::SetDefault("ns3::LteSpectrumPhy::DataErrorModelEnabled", BooleanValue(false));
    Config::SetDefault("ns3::LteUePhy::EnableUplinkPowerControl", BooleanValue(false));
    Config::SetDefault("ns3::LteUePhy::EnableRlfDetection", BooleanValue(false));
    Config::SetDefault("ns3::LteEnbRrc::SrsPeriodicity", UintegerValue(320));
}

void
SetDefaults()
{
    Config::SetDefault("ns3::LteEnbRrc::EpsBearerToRlcMapping", EnumValue(LteEnbRrc::RLC_UM_ALWAYS));
    Config::SetDefault("ns3::LteRlcUm::MaxTxBufferSize", UintegerValue(RLC_BUFFER_BYTES));
    Config::SetDefault("ns3::TcpL4Protocol::SocketType", TypeIdValue(TcpCubic::GetTypeId()));
    Config::SetDefault("ns3::TcpSocketBase::Sack", BooleanValue(true));
    Config::SetDefault("ns3::TcpSocketBase::Timestamp", BooleanValue(false));
    Config::SetDefault("ns3::TcpSocket::SegmentSize", UintegerValue(1460));
    Config::SetDefault("ns3::TcpSocket::InitialCwnd", UintegerValue(10));
    Config::SetDefault("ns3::TcpSocket::SndBufSize", UintegerValue(TCP_BUFFER_BYTES));
    Config::SetDefault("ns3::TcpSocket::RcvBufSize", UintegerValue(TCP_BUFFER_BYTES));
}

} // namespace

int
main(int argc, char* argv[])
{
    double seconds = 65.0;
    double delayMs = 4.0;
    uint32_t seed = 1;
    bool check = false;
    std::string features = "pared";
    std::string scheduler = "ns3::PriorityQueueScheduler";
    CommandLine command(__FILE__);
    command.AddValue("seconds", "simulated time", seconds);
    command.AddValue("delay-ms", "one way, from the server to the PGW", delayMs);
    command.AddValue("seed", "of whatever is drawn", seed);
    command.AddValue("features", "of the LTE module: pared or default", features);
    command.AddValue("scheduler", "of events", scheduler);
    command.AddValue("check", "count transport blocks by MCS, which takes time", check);
    command.Parse(argc, argv);
    if (features != "pared" && features != "default")
    {
        std::fprintf(stderr, "--features=%s: must be pared or default\n", features.c_str());
        return 2;
    }
    const auto start = std::chrono::steady_clock::now();

    if (features == "pared")
    {
        PareDown();
    }
    RngSeedManager::SetSeed(seed);
    SetDefaults();
    ObjectFactory events;
    events.SetTypeId(scheduler);
    Simulator::SetScheduler(events);

    Ptr<PointToPointEpcHelper> epc = CreateObject<PointToPointEpcHelper>();
    Ptr<LteHelper> lte = CreateObject<LteHelper>();
    lte->SetEpcHelper(epc);
    lte->SetSchedulerType("ns3::RrFfMacScheduler");
    lte->SetEnbDeviceAttribute("DlBandwidth", UintegerValue(25));
    lte->SetEnbDeviceAttribute("UlBandwidth", UintegerValue(25));

    NodeContainer server;
    NodeContainer enb;
    NodeContainer ue;
    server.Create(1);
    enb.Create(1);
    ue.Create(1);

    InternetStackHelper internet;
    internet.Install(server);
    PointToPointHelper wire;
    wire.SetDeviceAttribute("DataRate", StringValue("10Gb/s"));
    wire.SetDeviceAttribute("Mtu", UintegerValue(1500));
    wire.SetChannelAttribute("Delay", TimeValue(MicroSeconds(static_cast<uint64_t>(delayMs * 1e3))));
    NetDeviceContainer wires = wire.Install(epc->GetPgwNode(), server.Get(0));
    Ipv4AddressHelper addresses;
    addresses.SetBase("1.0.0.0", "255.0.0.0");
    addresses.Assign(wires);
    TrafficControlHelper().Uninstall(wires);
    Ipv4StaticRoutingHelper routing;
    routing.GetStaticRouting(server.Get(0)->GetObject<Ipv4>())
        ->AddNetworkRouteTo(Ipv4Address("7.0.0.0"), Ipv4Mask("255.0.0.0"), 1);

    MobilityHelper mobility;
    Ptr<ListPositionAllocator> places = CreateObject<ListPositionAllocator>();
    places->Add(Vector(0.0, 0.0, 0.0));
    places->Add(Vector(50.0, 0.0, 0.0));
    mobility.SetPositionAllocator(places);
    mobility.SetMobilityModel("ns3::ConstantPositionMobilityModel");
    mobility.Install(enb);
    mobility.Install(ue);

    NetDeviceContainer enbDevices = lte->InstallEnbDevice(enb);
    NetDeviceContainer ueDevices = lte->InstallUeDevice(ue);
    internet.Install(ue);
    Ipv4InterfaceContainer ueAddresses = epc->AssignUeIpv4Address(ueDevices);
    routing.GetStaticRouting(ue.Get(0)->GetObject<Ipv4>())
        ->SetDefaultRoute(epc->GetUeDefaultGatewayAddress(), 1);
    lte->Attach(ueDevices, enbDevices.Get(0));

    BulkSendHelper bulk("ns3::TcpSocketFactory", InetSocketAddress(ueAddresses.GetAddress(0), TCP_PORT));
    bulk.SetAttribute("MaxBytes", UintegerValue(0));
    bulk.SetAttribute("SendSize", UintegerValue(64 << 10));
    ApplicationContainer sender = bulk.Install(server.Get(0));
    PacketSinkHelper sink("ns3::TcpSocketFactory", InetSocketAddress(Ipv4Address::GetAny(), TCP_PORT));
    ApplicationContainer receiver = sink.Install(ue.Get(0));
    // Attaching takes some milliseconds.
    sender.Start(MilliSeconds(100));
    UdpClientHelper call(ueAddresses.GetAddress(0), UDP_PORT);
    call.SetAttribute("MaxPackets", UintegerValue(UINT32_MAX));
    call.SetAttribute("Interval", TimeValue(MilliSeconds(20)));
    call.SetAttribute("PacketSize", UintegerValue(172));
    ApplicationContainer caller = call.Install(server.Get(0));
    caller.Start(Seconds(VOIP_START_S));
    UdpServerHelper listener(UDP_PORT);
    ApplicationContainer listening = listener.Install(ue.Get(0));

    if (check)
    {
        Config::ConnectWithoutContext("/NodeList/*/DeviceList/*/ComponentCarrierMap/*/LteEnbMac/DlScheduling",
                                      MakeCallback(&NoteBlock));
    }
    Simulator::Stop(Seconds(seconds));
    const auto run = std::chrono::steady_clock::now();
    Simulator::Run();
    const auto end = std::chrono::steady_clock::now();

    using Wall = std::chrono::duration<double>;
    const double bits = DynamicCast<PacketSink>(receiver.Get(0))->GetTotalRx() * 8.0;
    std::printf("{\"seconds\":%g,\"build_wall_s\":%.6f,\"run_wall_s\":%.6f,\"goodput_mbps\":%.3f,\"voip_packets\":%u,"
                "\"events\":%llu,\"blocks_by_mcs\":{",
                seconds,
                Wall(run - start).count(),
                Wall(end - run).count(),
                bits / seconds / 1e6,
                static_cast<unsigned>(DynamicCast<UdpServer>(listening.Get(0))->GetReceived()),
                static_cast<unsigned long long>(Simulator::GetEventCount()));
    const char* separator = "";
    for (const auto& [mcs, count] : g_blocks)
    {
        std::printf("%s\"%u\":%llu", separator, mcs, static_cast<unsigned long long>(count));
        separator = ",";
    }
    std::printf("}}\n");
    Simulator::Destroy();
    return 0;
}
