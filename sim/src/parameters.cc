#include "parameters.h"

#include "fields.h"

#include <charconv>

#include <arpa/inet.h>

namespace bentpipe
{

namespace
{

constexpr uint64_t kMinDataRate = 1'000;
constexpr uint64_t kMaxDataRate = 10'000'000'000;
constexpr uint64_t kMaxQueuePackets = 1'000'000;
constexpr double kMinSuperframe = 0.001;  // s
constexpr uint16_t kReadyPort = 57832;
constexpr size_t kMaxInterfaceName = 15;  // IFNAMSIZ - 1
constexpr const char* kLeast = R"({
    "left": {"interface": "eth0"}, "right": {"interface": "eth1"}, "seed": 1, "truth": "truth.json",
    "forward": {"data_rate": 20000000, "delay": 0.3, "queue_packets": 125},
    "return": {"data_rate": 2000000, "delay": 0.3, "queue_packets": 125}})";

uint64_t
ReadDataRate(const Value& value)
{
    return value.Whole(kMinDataRate, kMaxDataRate, " of bit/s");
}

Subnet
ReadSubnet(const Value& value)
{
    const std::string expected = "a subnet such as 192.0.2.0/24 or 2001:db8::/64";
    const std::string text = value.Text(expected);
    const size_t slash = text.find('/');
    const std::string address = text.substr(0, slash);
    Subnet subnet;
    subnet.address.resize(sizeof(in6_addr));
    if (inet_pton(AF_INET, address.c_str(), subnet.address.data()) == 1)
    {
        subnet.address.resize(sizeof(in_addr));
    }
    else if (inet_pton(AF_INET6, address.c_str(), subnet.address.data()) != 1)
    {
        value.Reject(expected);
    }
    const char* end = text.data() + text.size();
    const char* begin = slash == std::string::npos ? end : text.data() + slash + 1;
    const auto result = std::from_chars(begin, end, subnet.prefix);
    if (result.ec != std::errc() || result.ptr != end || subnet.prefix == 0 || subnet.prefix > 8 * subnet.address.size())
    {
        value.Reject(expected);
    }
    return subnet;
}

End
ReadEnd(const Value& value)
{
    Fields fields(value);
    End end;
    const Value interface = fields.Need("interface");
    end.interface = interface.Text("the name of a network interface");
    if (end.interface.size() > kMaxInterfaceName || end.interface.find('/') != std::string::npos)
    {
        interface.Reject("the name of a network interface");
    }
    for (const Value& item : fields.Get("foreign", nlohmann::json::array()).Items("a list of subnets"))
    {
        end.foreign.push_back(ReadSubnet(item));
    }
    fields.RefuseOthers();
    return end;
}

std::vector<Change>
ReadChanges(Fields& impairments)
{
    std::vector<Change> changes;
    const std::string expected = "time, delay, data rate, loss and whether it is a handover, such as [15, 0.03, 50000000, 0.01, false]";
    const Value list = impairments.Get("changes", nlohmann::json::array());
    for (const Value& item : list.Items("a list of changes"))
    {
        const std::vector<Value> row = item.Items(expected);
        if (row.size() != 5)
        {
            item.Reject(expected);
        }
        const Change change{row[0].Seconds(kMaxTime),
                            row[1].Seconds(kMaxDelay),
                            row[2].Whole(0, kMaxDataRate, " of bit/s"),
                            row[3].Fraction(),
                            row[4].Flag()};
        if (!changes.empty() && change.time_s < changes.back().time_s)
        {
            list.Reject("in the order of the times");
        }
        changes.push_back(change);
    }
    return changes;
}

std::optional<DamaParameters>
ReadDama(Fields& impairments)
{
    const auto value = impairments.Find("dama");
    if (!value)
    {
        return std::nullopt;
    }
    Fields fields(*value);
    DamaParameters dama;
    const Value superframe = fields.Need("superframe");
    dama.superframe_s = superframe.Seconds(kMaxDelay);
    if (dama.superframe_s < kMinSuperframe)
    {
        superframe.Reject("at least 0.001 seconds");
    }
    dama.grant_delay_s = fields.Need("grant_delay").Seconds(kMaxDelay);
    dama.cra = fields.Get("cra", 0u).Whole(0, kMaxDataRate, " of bit/s");
    dama.rbdc = fields.Get("rbdc", 0u).Whole(0, kMaxDataRate, " of bit/s");
    dama.vbdc = fields.Get("vbdc", true).Flag();
    fields.RefuseOthers();
    if (dama.cra == 0 && dama.rbdc == 0 && !dama.vbdc)
    {
        value->Reject("a capacity: cra, rbdc or vbdc");
    }
    return dama;
}

DirectionParameters
ReadDirection(const Value& value, Fields& both, bool udp_only)
{
    Fields fields(value);
    Fields impairments(fields.Get("impairments", nlohmann::json::object()));
    DirectionParameters direction;
    direction.data_rate = ReadDataRate(fields.Need("data_rate"));
    direction.delay_s = fields.Need("delay").Seconds(kMaxDelay);
    direction.queue_packets = static_cast<uint32_t>(fields.Need("queue_packets").Whole(1, kMaxQueuePackets, " of packets"));
    direction.queue_discipline = fields.Get("queue_discipline", "drop-tail").Choice(QueueDisciplines());
    direction.changes = ReadChanges(impairments);
    direction.dama = ReadDama(impairments);
    direction.loss = ReadLoss(fields, impairments);
    direction.loss.udp_only = udp_only;
    direction.loss.changes = !direction.changes.empty();
    direction.impairments = ReadImpairments(impairments, both);
    impairments.RefuseOthers();
    fields.RefuseOthers();
    return direction;
}

std::string
ReadPath(const Value& value)
{
    const std::string path = value.Text("the path of a file");
    if (path.back() == '/')
    {
        value.Reject("the path of a file");
    }
    return path;
}

}  // namespace

std::string
UsageText()
{
    return "bentpipe-link DOCUMENT|@FILE: an asymmetric satellite link between two interfaces, in real time (ns-3).\n"
           "bentpipe-link --serve:  a document, one line of stdin, starts a link; the line stop ends it.\n"
           "A document with the defaults of all that may be left out, in bit/s, seconds and fractions (README):\n" +
           ParseParameters(kLeast).document.dump(2) + "\n";
}

Parameters
ParseParameters(const std::string& text)
{
    Parameters parameters;
    parameters.document = nlohmann::json::parse(text, nullptr, false);
    if (parameters.document.is_discarded())
    {
        throw UserError("The document is not JSON; --help shows one.");
    }
    Fields fields(Value(parameters.document, ""));
    parameters.left = ReadEnd(fields.Need("left"));
    parameters.right = ReadEnd(fields.Need("right"));
    if (parameters.left.interface == parameters.right.interface)
    {
        fields.Need("right").Reject("another interface than that of left");
    }
    Fields both(fields.Get("impairments", nlohmann::json::object()));
    parameters.udp_only = fields.Get("loss_protocol", "udp").Choice({"udp", "any"}) == "udp";
    parameters.forward = ReadDirection(fields.Need("forward"), both, parameters.udp_only);
    parameters.back = ReadDirection(fields.Need("return"), both, parameters.udp_only);
    parameters.rebinding = ReadRebinding(both);
    parameters.seed = static_cast<uint32_t>(fields.Need("seed").Whole(0, UINT32_MAX, ""));
    parameters.flood_bytes = fields.Get("flood", 0u).Whole(0, INT64_MAX, " of bytes");
    parameters.truth_path = ReadPath(fields.Need("truth"));
    if (const auto packets = fields.Find("packets"))
    {
        parameters.packets_path = ReadPath(*packets);
    }
    parameters.ready_port = static_cast<uint16_t>(fields.Get("ready_port", kReadyPort).Whole(1, UINT16_MAX, ""));
    both.RefuseOthers();
    fields.RefuseOthers();
    return parameters;
}

}  // namespace bentpipe
