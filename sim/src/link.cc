#include "link.h"

#include "clock.h"
#include "dual_queue.h"
#include "impairments.h"

#include "ns3/bridge-module.h"
#include "ns3/network-module.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <utility>

namespace bentpipe
{

namespace
{

const ns3::Time kFloodInterval = ns3::MilliSeconds(100);
constexpr uint64_t kCapturedBytes = 46;  // bytes of a packet in a capture in addition to the IP packet: record, Ethernet header
constexpr uint32_t kRngSeed = 1;
constexpr int64_t kForwardStream = 1;
constexpr int64_t kReturnStream = 2;
constexpr int64_t kNatStream = 3;
constexpr int64_t kForwardImpairments = 4;
constexpr int64_t kReturnImpairments = kForwardImpairments + kImpairmentStreams;

int64_t
WallMinusSteady()
{
    return ReadClock(CLOCK_REALTIME) - ReadClock(CLOCK_MONOTONIC);
}

/// An address to which no frame of the path is sent. The bridge would keep frames to its own address.
ns3::Mac48Address
PrivateAddress()
{
    static uint8_t last = 0;
    const std::array<uint8_t, 6> bytes{0x02, 'n', 's', '3', 0, ++last};
    ns3::Mac48Address address;
    address.CopyFrom(bytes.data());
    return address;
}

uint64_t
CaptureSize(const DirectionCounts& counts)
{
    return counts.bytes_in + kCapturedBytes * counts.packets_in;
}

}  // namespace

Link::Link(ns3::Ptr<EventLoop> loop, const Parameters& parameters, PacketLog* log)
    : loop_(std::move(loop)),
      anchor_(parameters.udp_only)
{
    truth_.parameters = parameters;
    // One fixed seed and a run number give independent replications (ns-3 manual, "Random Variables").
    ns3::RngSeedManager::SetSeed(kRngSeed);
    ns3::RngSeedManager::SetRun(parameters.seed);
    channel_ = ns3::CreateObject<AsymmetricChannel>();
    BuildSide(left_, parameters.left, parameters.back, Direction::kReturn, log);
    BuildSide(right_, parameters.right, parameters.forward, Direction::kForward, log);
    if (parameters.rebinding)
    {
        nat_ = std::make_unique<Nat>(*parameters.rebinding, anchor_, kNatStream);
    }
    Connect(left_, right_, parameters.back, kReturnStream);
    Connect(right_, left_, parameters.forward, kForwardStream);
    Impair(left_, truth_.parameters.back, kReturnImpairments);
    Impair(right_, truth_.parameters.forward, kForwardImpairments);
    ns3::Simulator::Schedule(ns3::Time(0), &Link::OnStart, this, log);
}

Link::~Link()
{
    ns3::Simulator::Destroy();
}

void
Link::BuildSide(Side& side, const End& about, const DirectionParameters& outgoing, Direction direction, PacketLog* log)
{
    side.node = ns3::CreateObject<ns3::Node>();

    side.raw = ns3::CreateObject<RawDevice>();
    side.raw->SetAddress(PrivateAddress());
    side.raw->Open(loop_, FindInterface(about.interface), ListOwnAddresses(), about.foreign);
    side.node->AddDevice(side.raw);

    side.queue = MakeQueue(outgoing.queue_discipline, outgoing.queue_packets);
    side.device = ns3::CreateObject<Transmitter>();
    side.truth = std::make_unique<DirectionTruth>(direction, side.queue, side.device, log);
    side.device->SetAddress(PrivateAddress());
    side.device->SetUp(channel_, side.queue, outgoing.data_rate);
    if (outgoing.dama)
    {
        side.device->Assign(*outgoing.dama);
    }
    side.node->AddDevice(side.device);

    // The bridge has two ports. A frame from one port always leaves by the other port, so the bridge need not learn addresses.
    const auto bridge = ns3::CreateObject<ns3::BridgeNetDevice>();
    bridge->SetAttribute("EnableLearning", ns3::BooleanValue(false));
    bridge->SetAddress(PrivateAddress());
    side.node->AddDevice(bridge);
    bridge->AddBridgePort(side.raw);
    bridge->AddBridgePort(side.device);
}

void
Link::Connect(Side& from, Side& to, const DirectionParameters& direction, int64_t random_stream)
{
    DirectionTruth* truth = from.truth.get();
    const ns3::Time delay = ns3::NanoSeconds(std::llround(direction.delay_s * 1e9));
    channel_->Connect(from.device, to.device, delay, [this, &from](Passage& passage) { Pass(from, passage); });
    from.loss = MakeLossModel(direction.loss, flows_, random_stream);
    if (from.loss.model != nullptr)
    {
        to.device->SetReceiveErrorModel(from.loss.model);
    }
    to.device->TraceConnectWithoutContext(
        "PhyRxDrop",
        ns3::Callback<void, ns3::Ptr<const ns3::Packet>>(
            [truth, &from](ns3::Ptr<const ns3::Packet> packet) { truth->OnLost(packet, from.handover); }));
    to.raw->SetSentCallback([this, truth](const PacketFacts& facts, ns3::Time lateness, bool taken) {
        truth_.lateness.Add(lateness.GetNanoSeconds());
        truth->OnSent(facts, lateness, taken);
    });
}

void
Link::Impair(Side& from, const DirectionParameters& direction, int64_t first_stream)
{
    // The NAT is at the client: before the link for packets from the client, after the link for packets to the client.
    if (nat_ != nullptr && &from == &left_)
    {
        from.impairments.push_back(nat_->Outgoing());
    }
    for (const ImpairmentMaker& make : direction.impairments)
    {
        from.impairments.push_back(make({anchor_, flows_, from.queue, *from.device, first_stream}));
    }
    if (const auto dual = ns3::DynamicCast<DualQueue>(from.queue))
    {
        dual->AssignStream(first_stream + kQueueStream);
    }
    if (nat_ != nullptr && &from == &right_)
    {
        from.impairments.push_back(nat_->Incoming());
    }
    if (!direction.changes.empty())
    {
        anchor_.AtFirstPacket([this, &from, &direction] {
            from.changes_began = ns3::Simulator::Now();
            Follow(from, direction.changes, 0);
        });
    }
}

/// Schedules the change with the number `next`. Each change schedules its successor, so that a long list costs nothing before its time.
void
Link::Follow(Side& from, const std::vector<Change>& changes, size_t next)
{
    if (next == changes.size())
    {
        return;
    }
    const ns3::Time at = from.changes_began + ns3::Seconds(changes[next].time_s);
    ns3::Simulator::Schedule(std::max(ns3::Time(0), at - ns3::Simulator::Now()), [this, &from, &changes, next] {
        Apply(from, changes[next]);
        Follow(from, changes, next + 1);
    });
}

void
Link::Pass(Side& from, Passage& passage)
{
    anchor_.Apply(passage);
    for (const auto& impairment : from.impairments)
    {
        impairment->Apply(passage);
        if (passage.dropped)
        {
            break;
        }
    }
    from.truth->OnTransmitted(passage);
}

void
Link::Apply(Side& from, const Change& change)
{
    from.device->SetDataRate(change.data_rate);
    channel_->SetDelay(from.device, ns3::NanoSeconds(std::llround(change.delay_s * 1e9)));
    if (from.loss.uniform != nullptr)
    {
        from.loss.uniform->SetProbability(change.loss);
    }
    from.handover = change.handover;
}

void
Link::OnStart(PacketLog* log)
{
    wall_minus_steady_ns_ = WallMinusSteady();
    const int64_t origin_ns = ReadClock(CLOCK_REALTIME) - loop_->RealNow().GetNanoSeconds();
    truth_.origin_unix_s = static_cast<double>(origin_ns) * 1e-9;
    if (log != nullptr)
    {
        log->Begin(static_cast<uint64_t>(origin_ns));
    }
    if (truth_.parameters.flood_bytes != 0)
    {
        ns3::Simulator::Schedule(kFloodInterval, &Link::LookForFlood, this);
    }
    left_.raw->Start();
    right_.raw->Start();
    on_open_();
}

void
Link::LookForFlood()
{
    const uint64_t most = std::max(CaptureSize(left_.truth->Counts()), CaptureSize(right_.truth->Counts()));
    if (most > truth_.parameters.flood_bytes)
    {
        // The link has the highest priority on the host. Reading more of a flood would leave no CPU time for the runner, which ends it.
        left_.raw->Close();
        right_.raw->Close();
        std::fputs("link flooded\n", stderr);
        return;
    }
    ns3::Simulator::Schedule(kFloodInterval, &Link::LookForFlood, this);
}

void
Link::Run(std::function<void()> on_open)
{
    on_open_ = std::move(on_open);
    ns3::Simulator::Run();
}

void
Link::RequestStop()
{
    ns3::Simulator::Schedule(loop_->RealNow() - ns3::Simulator::Now(), &Link::OnStop, this);
}

void
Link::OnStop()
{
    truth_.duration_s = ns3::Simulator::Now().GetSeconds();
    truth_.clock_step_s = static_cast<double>(WallMinusSteady() - wall_minus_steady_ns_) * 1e-9;
    if (const auto first = anchor_.FirstOneRtt())
    {
        truth_.first_1rtt_s = first->GetSeconds();
    }
    if (nat_ != nullptr)
    {
        truth_.mappings = nat_->Mappings();
    }
    truth_.forward = right_.truth->Counts();
    truth_.back = left_.truth->Counts();
    left_.raw->Close();
    right_.raw->Close();
    ns3::Simulator::Stop();
}

Truth
Link::Summary() const
{
    Truth truth = truth_;
    truth.left = left_.raw->Counts();
    truth.right = right_.raw->Counts();
    truth.receive_lateness.Merge(left_.raw->Lateness());
    truth.receive_lateness.Merge(right_.raw->Lateness());
    return truth;
}

}  // namespace bentpipe
