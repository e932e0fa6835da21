package tech.kwik.core.impl;

import tech.kwik.core.QuicClientConnection;

/** Gives the client access to properties of kwik's connections that are visible only in kwik's own package. */
public final class Internals {

    private Internals() {}

    /** Whether the handshake is confirmed (RFC 9001 §4.1.2). Before that, keys can't be updated. */
    public static boolean isConfirmed(QuicClientConnection connection) {
        return ((QuicConnectionImpl) connection).handshakeState == HandshakeState.Confirmed;
    }

    public static void updateKeys(QuicClientConnection connection) {
        ((QuicClientConnectionImpl) connection).updateKeys();
    }

    /** The secret of 0-RTT packets, which kwik's own key log lacks. */
    public static byte[] earlySecret(QuicClientConnection connection) {
        return ((QuicConnectionImpl) connection).getTlsEngine().getClientEarlyTrafficSecret();
    }
}
