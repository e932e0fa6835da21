#include "loss.h"

#include "packet_facts.h"

#include "ns3/core-module.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <netinet/in.h>

namespace bentpipe
{

namespace
{

/// Gives only UDP packets to another model, so that a ping or a TCP probe does not shift the pattern of a seed.
class UdpOnly : public ns3::ErrorModel
{
  public:
    explicit UdpOnly(ns3::Ptr<ns3::ErrorModel> inner)
        : inner_(inner)
    {
    }

  private:
    bool
    DoCorrupt(ns3::Ptr<ns3::Packet> packet) override
    {
        return Describe(packet).protocol == IPPROTO_UDP && inner_->IsCorrupt(packet);
    }

    void
    DoReset() override
    {
        inner_->Reset();
    }

    ns3::Ptr<ns3::ErrorModel> inner_;
};

/// Loses each packet with the same probability, but at most `longest` packets of a flow in a row (0: no limit).
class Uniform : public UniformLoss
{
  public:
    Uniform(double probability, uint32_t longest, Flows& flows, int64_t stream)
        : probability_(probability),
          longest_(longest),
          states_(flows, stream)
    {
    }

    void
    SetProbability(double probability) override
    {
        probability_ = probability;
    }

  private:
    struct State
    {
        explicit State(int64_t stream)
            : random(ns3::CreateObject<ns3::UniformRandomVariable>())
        {
            random->SetStream(stream);
        }

        ns3::Ptr<ns3::UniformRandomVariable> random;
        uint32_t run = 0;  // losses in a row
    };

    bool
    DoCorrupt(ns3::Ptr<ns3::Packet> packet) override
    {
        State& state = states_.Of(packet);
        // A number is drawn for every packet, so that the pattern of a seed doesn't depend on the limit.
        const bool chosen = state.random->GetValue(0.0, 1.0) < probability_;
        const bool lost = chosen && (longest_ == 0 || state.run < longest_);
        state.run = lost ? state.run + 1 : 0;
        return lost;
    }

    void
    DoReset() override
    {
        states_.Clear();
    }

    double probability_;
    uint32_t longest_;
    PerFlow<State> states_;
};

/// Loses the packets of a list, counted from 1, and the packets that another model loses. The other model may be null.
class Listed : public ns3::ErrorModel
{
  public:
    Listed(std::vector<PacketRange> ranges, ns3::Ptr<ns3::ErrorModel> other)
        : ranges_(std::move(ranges)),
          other_(other)
    {
    }

  private:
    bool
    DoCorrupt(ns3::Ptr<ns3::Packet> packet) override
    {
        ++number_;
        const bool listed = std::any_of(ranges_.begin(), ranges_.end(), [this](const PacketRange& range) {
            return range.first <= number_ && number_ <= range.last;
        });
        const bool lost = other_ != nullptr && other_->IsCorrupt(packet);
        return listed || lost;
    }

    void
    DoReset() override
    {
        number_ = 0;
    }

    std::vector<PacketRange> ranges_;
    ns3::Ptr<ns3::ErrorModel> other_;
    uint64_t number_ = 0;
};

/// The model with two states of Gilbert and Elliott. The bad state loses every packet. The model starts in the good state.
class TwoStates : public ns3::ErrorModel
{
  public:
    TwoStates(const GilbertElliott& probabilities, uint32_t longest, int64_t stream)
        : probabilities_(probabilities),
          longest_(longest),
          random_(ns3::CreateObject<ns3::UniformRandomVariable>())
    {
        random_->SetStream(stream);
    }

  private:
    bool
    DoCorrupt(ns3::Ptr<ns3::Packet>) override
    {
        const double leave = bad_ ? probabilities_.to_good : probabilities_.to_bad;
        bad_ = (random_->GetValue(0.0, 1.0) < leave) != bad_;
        const bool lost = bad_ && (longest_ == 0 || run_ < longest_);
        run_ = lost ? run_ + 1 : 0;
        return lost;
    }

    void
    DoReset() override
    {
        bad_ = false;
        run_ = 0;
    }

    GilbertElliott probabilities_;
    uint32_t longest_;  // losses in a row; 0: no limit
    uint32_t run_ = 0;
    ns3::Ptr<ns3::UniformRandomVariable> random_;
    bool bad_ = false;
};

constexpr uint64_t kMaxPacketNumber = 1'000'000'000;
constexpr uint64_t kMaxBurst = 1'000'000;

std::vector<PacketRange>
ReadList(const Value& list)
{
    const std::string expected = "first and last of a run of packets, such as [2, 7]";
    std::vector<PacketRange> ranges;
    for (const Value& item : list.Items("a list of runs of packets, such as [[2, 7]]"))
    {
        const auto [first, last] = item.Pair(expected);
        const uint64_t from = first.Whole(1, kMaxPacketNumber, "");
        ranges.push_back({from, last.Whole(from, kMaxPacketNumber, "")});
    }
    return ranges;
}

}  // namespace

uint32_t
ReadBurst(Fields& impairments)
{
    return static_cast<uint32_t>(impairments.Get("burst", 0u).Whole(0, kMaxBurst, " of packets"));
}

LossParameters
ReadLoss(Fields& direction, Fields& impairments)
{
    LossParameters loss;
    loss.fraction = direction.Get("loss", 0.0).Fraction();
    if (const auto states = impairments.Find("gilbert_elliott"))
    {
        const auto [to_bad, to_good] = states->Pair("two fractions, good to bad and bad to good, such as [0.018, 0.645]");
        loss.gilbert_elliott = GilbertElliott{to_bad.Fraction(), to_good.Fraction()};
    }
    loss.list = ReadList(impairments.Get("loss_list", nlohmann::json::array()));
    loss.burst = ReadBurst(impairments);
    return loss;
}

LossModel
MakeLossModel(const LossParameters& loss, Flows& flows, int64_t stream)
{
    LossModel made;
    if (loss.gilbert_elliott)
    {
        made.model = ns3::CreateObject<TwoStates>(*loss.gilbert_elliott, loss.burst, stream);
    }
    else if (loss.fraction > 0.0 || loss.changes)
    {
        made.uniform = ns3::CreateObject<Uniform>(loss.fraction, loss.burst, flows, stream);
        made.model = made.uniform;
    }
    if (!loss.list.empty())
    {
        made.model = ns3::CreateObject<Listed>(loss.list, made.model);
    }
    if (made.model != nullptr && loss.udp_only)
    {
        made.model = ns3::CreateObject<UdpOnly>(made.model);
    }
    return made;
}

}  // namespace bentpipe
