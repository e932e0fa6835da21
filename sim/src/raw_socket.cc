#include "raw_socket.h"

#include "user_error.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <vector>

#include <arpa/inet.h>
#include <linux/filter.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <sys/socket.h>
#include <unistd.h>

namespace bentpipe
{

namespace
{

// Enough for 0.5 s of a 250 Mbit/s link in 1500-byte packets; each packet uses about 2.3 kB. With the default of 208 KiB, a quarter
// of a burst of 1500 packets was lost.
constexpr int kReceiveBufferBytes = 32 << 20;
constexpr size_t kMaxOwnAddresses = 64;
constexpr uint32_t kAccept = 0x40000;
constexpr uint32_t kReject = 0;

constexpr uint32_t kEtherTypeOffset = 12;
constexpr uint32_t kV4DestinationOffset = 14 + 16;
constexpr uint32_t kV6DestinationOffset = 14 + 24;

using Program = std::vector<sock_filter>;

void
Load(Program& program, uint16_t size, uint32_t offset)
{
    program.push_back(BPF_STMT(static_cast<uint16_t>(BPF_LD | size | BPF_ABS), offset));
}

void
Return(Program& program, uint32_t verdict)
{
    program.push_back(BPF_STMT(BPF_RET | BPF_K, verdict));
}

/// Continues with the next instruction when A equals the value; otherwise skips `otherwise` instructions.
void
UnlessEqualSkip(Program& program, uint32_t value, uint8_t otherwise)
{
    program.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, 0, otherwise));
}

Program
FilterV4(const OwnAddresses& own)
{
    Program program;
    Load(program, BPF_W, kV4DestinationOffset);
    for (const in_addr& address : own.v4)
    {
        UnlessEqualSkip(program, ntohl(address.s_addr), 1);
        Return(program, kReject);
    }
    Return(program, kAccept);
    return program;
}

Program
FilterV6(const OwnAddresses& own)
{
    Program program;
    Load(program, BPF_H, kV6DestinationOffset);
    program.push_back(BPF_STMT(BPF_ALU | BPF_AND | BPF_K, 0xffc0));
    UnlessEqualSkip(program, 0xfe80, 1);
    Return(program, kReject);
    for (const in6_addr& address : own.v6)
    {
        for (uint8_t word = 0; word < 4; ++word)
        {
            uint32_t value = 0;
            std::memcpy(&value, address.s6_addr + 4 * word, sizeof(value));
            Load(program, BPF_W, kV6DestinationOffset + 4U * word);
            UnlessEqualSkip(program, ntohl(value), static_cast<uint8_t>(2 * (3 - word) + 1));
        }
        Return(program, kReject);
    }
    Return(program, kAccept);
    return program;
}

Program
MakeFilter(const OwnAddresses& own)
{
    Program program;
    Load(program, BPF_B, static_cast<uint32_t>(SKF_AD_OFF + SKF_AD_PKTTYPE));
    program.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, PACKET_HOST, 1, 0));
    Return(program, kReject);
    Load(program, BPF_H, kEtherTypeOffset);
    for (const auto& [ether_type, part] : {std::pair{ETH_P_IP, FilterV4(own)}, std::pair{ETH_P_IPV6, FilterV6(own)}})
    {
        program.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<uint32_t>(ether_type), 1, 0));
        program.push_back(BPF_STMT(BPF_JMP | BPF_JA, static_cast<uint32_t>(part.size())));
        program.insert(program.end(), part.begin(), part.end());
    }
    Return(program, kReject);
    return program;
}

[[noreturn]] void
Fail(int fd, const std::string& what, const Interface& interface)
{
    const std::string reason = std::strerror(errno);
    close(fd);
    throw UserError(what + " " + interface.name + " failed: " + reason + "; the link needs the capability NET_RAW.");
}

void
Set(int fd, int level, int option, int value, const Interface& interface)
{
    if (setsockopt(fd, level, option, &value, sizeof(value)) != 0)
    {
        Fail(fd, "Socket option " + std::to_string(option) + " on", interface);
    }
}

void
EnlargeReceiveBuffer(int fd, const Interface& interface)
{
    const int bytes = kReceiveBufferBytes;
    if (setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &bytes, sizeof(bytes)) != 0)
    {
        std::fprintf(stderr, "warning: a large receive buffer was refused on %s (capability NET_ADMIN); bursts may be lost.\n",
                     interface.name.c_str());
        Set(fd, SOL_SOCKET, SO_RCVBUF, bytes, interface);
    }
}

}  // namespace

int
OpenRawSocket(const Interface& interface, const OwnAddresses& own)
{
    if (own.v4.size() > kMaxOwnAddresses || own.v6.size() > kMaxOwnAddresses)
    {
        throw UserError("This network namespace has more than 64 addresses; give the link a namespace of its own.");
    }
    // With protocol 0 the socket receives no frame before bind, so no frame passes without the filter.
    const int fd = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, 0);
    if (fd < 0)
    {
        Fail(fd, "A raw socket on", interface);
    }
    Program program = MakeFilter(own);
    const sock_fprog filter{static_cast<unsigned short>(program.size()), program.data()};
    if (setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &filter, sizeof(filter)) != 0)
    {
        Fail(fd, "The packet filter on", interface);
    }
    Set(fd, SOL_PACKET, PACKET_IGNORE_OUTGOING, 1, interface);
    Set(fd, SOL_PACKET, PACKET_AUXDATA, 1, interface);
    Set(fd, SOL_SOCKET, SO_TIMESTAMPNS, 1, interface);
    EnlargeReceiveBuffer(fd, interface);
    sockaddr_ll address{};
    address.sll_family = AF_PACKET;
    address.sll_protocol = htons(ETH_P_ALL);
    address.sll_ifindex = interface.index;
    if (bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0)
    {
        Fail(fd, "Binding to", interface);
    }
    return fd;
}

uint64_t
ReadKernelDrops(int fd)
{
    tpacket_stats statistics{};
    socklen_t size = sizeof(statistics);
    getsockopt(fd, SOL_PACKET, PACKET_STATISTICS, &statistics, &size);
    return statistics.tp_drops;
}

}  // namespace bentpipe
